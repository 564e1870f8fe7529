// SPDX-License-Identifier: Apache-2.0
// The interface that each kind of device memory implements for a Buffer.
#pragma once

#include <cstddef>

#include "octavo/octavo.hpp"

namespace octavo {

class Buffer::Impl {
 public:
  Impl() = default;
  virtual ~Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  virtual Status upload(const void* from, std::size_t bytes, std::size_t offset) const = 0;
  virtual Status download(void* to, std::size_t bytes, std::size_t offset, Stream stream) const = 0;

  void* data = nullptr;
  std::size_t bytes = 0;
};

inline constexpr std::size_t kBufferAlignment = 256;

}  // namespace octavo
