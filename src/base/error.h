// SPDX-License-Identifier: Apache-2.0
// Error messages: one sentence each, always of the same form.
#pragma once

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo {

// Escapes control characters of untrusted values (a name in a file, a command line argument), which
// could otherwise control the terminal or break the message into two lines.
inline std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f)
      shown += c;
    else
      shown += fmt::format("\\x{:02x}", byte);
  }
  return shown;
}

// invalid("q", "rank 3", "rank 4 (batch, heads, seqlen, head_dim)")
//   -> "q is rank 3; supported: rank 4 (batch, heads, seqlen, head_dim)."
inline Status invalid(std::string_view argument, std::string_view value,
                      std::string_view supported) {
  return {ErrorCode::invalid_argument,
          fmt::format("{} is {}; supported: {}.", argument, printable(value), supported)};
}

inline Status unsupported(std::string_view argument, std::string_view value,
                          std::string_view supported) {
  return {ErrorCode::unsupported,
          fmt::format("{} is {}; supported here: {}.", argument, printable(value), supported)};
}

// The exception that is being handled, as a Status. The out-of-memory message is short enough for
// std::string not to allocate.
inline Status status_of_exception() noexcept {
  try {
    try {
      throw;
    } catch (const Status& status) {
      return status;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::length_error&) {  // a size beyond the container's limit
      throw std::bad_alloc();
    } catch (const std::exception& error) {
      return {ErrorCode::device_error,
              fmt::format("Unexpected error: {}.", printable(error.what()))};
    }
  } catch (const std::bad_alloc&) {  // also if formatting the message above failed
    return {ErrorCode::out_of_memory, "Out of memory."};
  } catch (...) {
    return {ErrorCode::device_error, "Unknown error."};
  }
}

// Every public function that returns a Status or a Result runs its body in here, so that exceptions
// become the returned Status.
template <class Body>
auto without_exceptions(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace octavo

// Returns a failed Status from the calling function.
#define OCTAVO_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::octavo::Status failed_status = (expression); \
    if (!failed_status.ok()) return failed_status; \
  } while (false)
