// SPDX-License-Identifier: Apache-2.0
// Copies the host arguments of a call, of either pass, to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// Memory on a device: inputs, and outputs that return to the host.
class Staging {
 public:
  // Copies the outputs and their margins to the device once more, with the bytes of the first copy.
  Status send_outputs() const;
  // Copies the outputs and their margins back to the host, after the work of a stream.
  Status fetch(Stream stream = nullptr) const;

 protected:
  // Copies the whole memory span of a tensor and `margin` bytes on either side (which must exist),
  // so that fetch() also shows writes outside the tensor, and points the tensor at the copy.
  Status copy_input(ConstTensor& tensor, Device device, std::size_t margin);
  // Outputs whose spans overlap, such as parts of one array, share a copy. Otherwise fetch() would
  // overwrite the results of one with old bytes of the other's span.
  Status copy_outputs(const std::vector<Tensor*>& tensors, Device device, std::size_t margin);
  template <class T>
  Status copy_array(const T* host, std::int64_t count, Device device, const T*& pointer);
  // Copies the arrays of padding and of modifiers. `on` is a copy of the host's arguments, whose
  // pointers are redirected.
  template <class PassArguments>
  Status copy_modifiers(const PassArguments& host, std::int64_t sequences, Device device,
                        std::size_t margin, PassArguments& on);

 private:
  Status copy_block_mask(const BlockMask& host, Device device, BlockMask& on);
  struct Copy {
    Buffer buffer;
    std::byte* host = nullptr;  // where the bytes came from
    std::size_t bytes = 0;
    std::size_t offset = 0;  // of the bytes in the buffer

    // The device address that corresponds to this host address.
    std::byte* of(const std::byte* at) const {
      return static_cast<std::byte*>(buffer.data()) + offset + (at - host);
    }
  };
  static Result<Copy> copy_span(std::byte* host, std::size_t bytes, Device device);

  std::vector<Copy> outputs_;
  std::vector<Buffer> inputs_;
};

class StagedArguments : public Staging {
 public:
  static Result<StagedArguments> make(const Arguments& host, const Problem& run_problem,
                                      Device device, std::size_t margin = 0);
  const Arguments& on_device() const { return device_; }

 private:
  Status copy_scales(const Arguments& host, const Problem& run_problem, Device device);

  Arguments device_;
};

class StagedBackwardArguments : public Staging {
 public:
  static Result<StagedBackwardArguments> make(const BackwardArguments& host, Device device,
                                              std::size_t margin = 0);
  const BackwardArguments& on_device() const { return device_; }

 private:
  BackwardArguments device_;
};

}  // namespace octavo
