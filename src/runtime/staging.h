// Copies of host arguments on a device.
#pragma once

#include <cstddef>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

class StagedArguments {
 public:
  // Copies the whole memory span of every tensor and `margin` bytes on either side (which must
  // exist), so that fetch() also shows writes outside the tensors.
  static Result<StagedArguments> make(const Arguments& host, const Problem& run_problem,
                                      Device device, std::size_t margin = 0);

  const Arguments& on_device() const { return device_; }
  // Copies out, lse and out_amax with their margins to the device again, as make() did.
  Status send_outputs() const;
  // Copies them with their margins back to the host after the work of a stream.
  Status fetch(Stream stream = nullptr) const;

 private:
  struct Copy {
    Buffer buffer;
    std::byte* host = nullptr;  // where the bytes came from
    std::size_t bytes = 0;
    std::size_t offset = 0;  // of the bytes in the buffer
  };
  Status copy_tensor(const ConstTensor& host, Device device, std::size_t margin, Copy& copy,
                     const void*& pointer);
  template <class T>
  Status copy_array(const T* host, std::int64_t count, Device device, const T*& pointer);

  Arguments device_;
  Copy out_, lse_, amax_;
  std::vector<Buffer> inputs_;
};

}  // namespace octavo
