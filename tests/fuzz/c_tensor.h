// SPDX-License-Identifier: Apache-2.0
// Tensors of the C interface for the fuzz targets: shapes and strides first, then memory of exactly
// that size, so that an access outside the tensor is outside an allocation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "fuzz.h"
#include "octavo/octavo.h"

namespace octavo::fuzz {

inline constexpr std::int64_t kInsane[] = {-1,
                                           0,
                                           1,
                                           3,
                                           INT64_MIN,
                                           INT64_MAX,
                                           INT64_MAX / 2,
                                           std::int64_t{INT32_MAX} + 1,
                                           std::int64_t{1} << 61,
                                           -(std::int64_t{1} << 40)};

inline std::size_t element_bytes(std::int32_t dtype) {
  return dtype == OCTAVO_F16 || dtype == OCTAVO_BF16    ? 2
         : dtype >= OCTAVO_E4M3 && dtype <= OCTAVO_BOOL ? 1
                                                        : 4;
}

// A view of the given shape in one of several layouts, without memory.
inline octavo_tensor make_view(Reader& in, std::int32_t dtype, std::int64_t b, std::int64_t h,
                               std::int64_t s, std::int64_t d) {
  octavo_tensor t = in.one_in(3) ? octavo_tensor_bshd(nullptr, OCTAVO_F32, b, h, s, d)
                                 : octavo_tensor_bhsd(nullptr, OCTAVO_F32, b, h, s, d);
  t.dtype = dtype;
  if (in.one_in(3)) {  // padding between rows, which must not change
    const std::int64_t pad = in.between(1, 9);
    t.stride[2] = d + pad;
    t.stride[1] = s * t.stride[2] + in.between(0, 3);
    t.stride[0] = h * t.stride[1] + in.between(0, 3);
  }
  return t;
}

class Operand {
 public:
  enum class Span { exact, refused, too_large };

  // Allocates memory for `view`. refused: no memory could hold it, and the library must refuse it;
  // too_large: possibly valid, but not for a test.
  Span allocate(octavo_tensor& view) {
    constexpr std::int64_t kLargest = 1 << 20;
    __extension__ using Wide = __int128;
    const Wide size = static_cast<Wide>(element_bytes(view.dtype));
    Wide last = 0;
    bool empty = false, negative = false, long_side = false;
    for (int i = 0; i < 4; ++i) {
      negative = negative || view.shape[i] < 0 || view.stride[i] < 0;
      empty = empty || view.shape[i] == 0;
      long_side = long_side || view.shape[i] > 4096;
      last += (static_cast<Wide>(view.shape[i]) - 1) * view.stride[i];
    }
    Span span = Span::exact;
    constexpr Wide kAddressable = Wide{1} << 60;
    const bool huge = !empty && last >= kAddressable;  // and times `size` more than Wide may hold
    Wide bytes = empty || huge ? 0 : (last + 1) * size;
    if (negative || huge || bytes > kAddressable) {
      span = Span::refused;
      bytes = 0;
    } else if (bytes > kLargest || (long_side && !empty)) {
      return Span::too_large;
    }
    bytes_ = static_cast<std::size_t>(bytes);
    memory_ = std::make_unique<std::uint8_t[]>(bytes_);
    view.data = memory_.get();
    return span;
  }

  // Values of every kind: mostly ordinary, occasionally arbitrary bits.
  void fill(Reader& in, std::int32_t dtype) {
    std::uint64_t state = in.word() | 1;
    const bool wild = in.one_in(4);
    for (std::size_t i = 0; i < bytes_; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      memory_[i] = static_cast<std::uint8_t>(state >> 56);
      // The last byte of a float holds sign and exponent: near 1, and not infinite.
      const std::size_t size = element_bytes(dtype);
      if (!wild && size > 1 && i % size == size - 1)
        memory_[i] = static_cast<std::uint8_t>((memory_[i] & 0x81) | 0x3c);
    }
  }
  void poison(std::uint8_t value) { std::fill_n(memory_.get(), bytes_, value); }
  std::vector<std::uint8_t> copy() const { return {memory_.get(), memory_.get() + bytes_}; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t bytes_ = 0;
};

// Marks the bytes of a view's memory that belong to its elements; `wanted(row)` selects rows.
template <class Wanted>
std::vector<bool> element_map(const octavo_tensor& t, std::size_t bytes, const Wanted& wanted) {
  std::vector<bool> map(bytes);
  const std::size_t size = element_bytes(t.dtype);
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < t.shape[2]; ++s)
        for (std::int64_t d = 0; d < t.shape[3] && wanted(s); ++d) {
          const auto at = static_cast<std::size_t>(b * t.stride[0] + h * t.stride[1] +
                                                   s * t.stride[2] + d * t.stride[3]);
          for (std::size_t i = 0; i < size; ++i) map[at * size + i] = true;
        }
  return map;
}

inline void require_untouched(const std::vector<std::uint8_t>& memory, std::uint8_t poison,
                              const char* what) {
  for (const std::uint8_t byte : memory) require(byte == poison, what);
}

// Two runs over different poison: elements must be equal, and so were written; the rest must not
// change.
inline void require_written(const std::vector<std::uint8_t>& first, std::uint8_t first_poison,
                            const std::vector<std::uint8_t>& second, std::uint8_t second_poison,
                            const std::vector<bool>& elements, bool repeatable) {
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (elements[i])
      require(!repeatable || first[i] == second[i], "every element is written, the same each time");
    else
      require(first[i] == first_poison && second[i] == second_poison,
              "nothing but the elements is written");
  }
}

}  // namespace octavo::fuzz
