// The error message for a wrong configuration field.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "attention/error.h"

namespace octavo {

inline Status wrong_field(std::string_view field, int value, std::string_view supported) {
  return invalid(fmt::format("config.{}", field), fmt::format("{}", value), supported);
}

}  // namespace octavo
