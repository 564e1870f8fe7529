// How the library words its errors: one sentence, made in one place.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo {

// invalid("q", "rank 3", "rank 4 (batch, heads, rows, columns)")
//   -> "q is rank 3; supported: rank 4 (batch, heads, rows, columns)."
inline Status invalid(std::string_view argument, std::string_view value,
                      std::string_view supported) {
  return {ErrorCode::invalid_argument,
          fmt::format("{} is {}; supported: {}.", argument, value, supported)};
}

inline Status unsupported(std::string_view argument, std::string_view value,
                          std::string_view supported) {
  return {ErrorCode::unsupported,
          fmt::format("{} is {}; supported here: {}.", argument, value, supported)};
}

}  // namespace octavo

// Hands a failed Status to the caller.
#define OCTAVO_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::octavo::Status failed_status = (expression); \
    if (!failed_status.ok()) return failed_status; \
  } while (false)
