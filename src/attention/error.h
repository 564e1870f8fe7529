// How the library words its errors: one sentence, made in one place.
#pragma once

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo {

// A value may be a stranger's: a name in a file, a word on the command line. Control bytes in it
// would act on the terminal that shows the sentence, or break it into two lines.
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

// invalid("q", "rank 3", "rank 4 (batch, heads, rows, columns)")
//   -> "q is rank 3; supported: rank 4 (batch, heads, rows, columns)."
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

// The exception that is being handled, as a Status. The sentence for memory that cannot be had is
// short enough for the inside of a std::string, so that it needs none itself.
inline Status status_of_exception() noexcept {
  try {
    try {
      throw;
    } catch (const Status& status) {
      return status;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::length_error&) {  // more than there can ever be
      throw std::bad_alloc();
    } catch (const std::exception& error) {
      return {ErrorCode::device_error,
              fmt::format("The system refused something: {}.", printable(error.what()))};
    }
  } catch (const std::bad_alloc&) {  // or none for the sentence
    return {ErrorCode::out_of_memory, "Out of memory."};
  } catch (...) {
    return {ErrorCode::device_error, "Unknown error."};
  }
}

// The boundary of the library: every public function that returns a Status or a Result runs its
// body in here, and what the body throws becomes the Status that is returned.
template <class Body>
auto without_exceptions(const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace octavo

// Hands a failed Status to the caller.
#define OCTAVO_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::octavo::Status failed_status = (expression); \
    if (!failed_status.ok()) return failed_status; \
  } while (false)
