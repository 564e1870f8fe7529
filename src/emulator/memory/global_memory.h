// SPDX-License-Identifier: Apache-2.0
// The global memory that a kernel may access: named tensors, checked byte by byte.
//
// A tensor with gaps between its rows owns the rows and not the gaps: a bitmap has one bit for each
// byte of its extent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo::emulator {

class GlobalMemory {
 public:
  enum class Use : std::uint8_t { read, write };

  // Elements of `element_bytes` at data + sum(index * stride), strides in elements.
  struct Tensor {
    std::string name;
    const void* data = nullptr;
    std::size_t element_bytes = 1;
    std::array<std::int64_t, 4> shape{1, 1, 1, 1};
    std::array<std::int64_t, 4> stride{0, 0, 0, 0};
    Use use = Use::read;
  };
  void add(const Tensor& tensor);
  void add_array(std::string name, const void* data, std::size_t bytes, Use use);

  // Whether an address is in a tensor that is only read.
  bool is_input(const void* data) const;
  // The reason why these bytes may not be accessed this way; empty if they may.
  std::string refuse(const void* data, std::size_t bytes, Use use) const;
  // The tensor that contains or is nearest to an address, and the distance from its first byte.
  std::string describe(const void* data) const;

 private:
  struct Region {
    std::string name;
    std::uintptr_t begin = 0, end = 0;
    Use use = Use::read;
    std::vector<bool> owned;  // empty: all of it
  };
  const Region* find(std::uintptr_t address) const;

  std::vector<Region> regions_;
  mutable std::size_t last_ = 0;
};

}  // namespace octavo::emulator
