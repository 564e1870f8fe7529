// Copies of host arguments on a device, of either pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// Memory on a device: inputs, and outputs that return to the host.
class Staging {
 public:
  // Copies the outputs with their margins to the device again, as they were copied at first.
  Status send_outputs() const;
  // Copies them with their margins back to the host after the work of a stream.
  Status fetch(Stream stream = nullptr) const;

 protected:
  // Copies the whole memory span of a tensor and `margin` bytes on either side (which must exist),
  // so that fetch() also shows writes outside the tensor, and points the tensor at the copy.
  Status copy_input(ConstTensor& tensor, Device device, std::size_t margin);
  // Outputs whose spans meet, as parts of one array do, share a copy: fetch() would otherwise
  // overwrite the results of one with the old bytes of another's span.
  Status copy_outputs(const std::vector<Tensor*>& tensors, Device device, std::size_t margin);
  template <class T>
  Status copy_array(const T* host, std::int64_t count, Device device, const T*& pointer);
  // Padding, and what changes scores; `on` is a copy of the host's arguments.
  template <class PassArguments>
  Status copy_modifiers(const PassArguments& host, std::int64_t sequences, Device device,
                        std::size_t margin, PassArguments& on);

 private:
  struct Copy {
    Buffer buffer;
    std::byte* host = nullptr;  // where the bytes came from
    std::size_t bytes = 0;
    std::size_t offset = 0;  // of the bytes in the buffer

    // Where the device has what is at this address of the host.
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
  Status copy_block_mask(const BlockMask& host, Device device);

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
