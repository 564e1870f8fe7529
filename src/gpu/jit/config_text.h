// SPDX-License-Identifier: Apache-2.0
// A kernel's configuration as text. The same form is used in NVRTC's name expression, the cache
// key, the command's --config and the log.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "config/append.h"
#include "config/decode.h"
#include "config/quantize.h"
#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "config/sm80_forward.h"
#include "config/sm90_backward.h"
#include "config/sm90_forward.h"
#include "octavo/octavo.hpp"

namespace octavo {

// All fields, as a designated initialiser that is valid in namespace octavo:
// "Sm80ForwardConfig{.arch=90,...,.output={.element=Element::f16,...},...}".
std::string to_text(const Sm80ForwardConfig& config);
std::string to_text(const QuantizeConfig& config);
std::string to_text(const Sm90ForwardConfig& config);
std::string to_text(const DecodeConfig& config);
std::string to_text(const AppendConfig& config);
std::string to_text(const Sm80BackwardConfig& config);
std::string to_text(const Sm90BackwardConfig& config);
std::string to_text(const RowStatsConfig& config);

// The fields that differ from the defaults, without the arch, such as
// "element=bf16,output.amax=true". It is meant for tables, and the parser accepts it too.
std::string brief_text(const Sm80ForwardConfig& config);
std::string brief_text(const QuantizeConfig& config);
std::string brief_text(const Sm90ForwardConfig& config);
std::string brief_text(const DecodeConfig& config);
std::string brief_text(const AppendConfig& config);
std::string brief_text(const Sm80BackwardConfig& config);
std::string brief_text(const Sm90BackwardConfig& config);
std::string brief_text(const RowStatsConfig& config);

// Parses any subset of the fields in any order; the others come from `defaults`. Whitespace, the
// type's name with its braces, the dots and "Element::" are optional. Fields of a struct are
// written "output.amax=true" or "output={amax=true}".
Result<Sm80ForwardConfig> parse_sm80_forward(std::string_view text,
                                             const Sm80ForwardConfig& defaults = {});
Result<QuantizeConfig> parse_quantize(std::string_view text, const QuantizeConfig& defaults = {});
Result<Sm90ForwardConfig> parse_sm90_forward(std::string_view text,
                                             const Sm90ForwardConfig& defaults = {});
Result<DecodeConfig> parse_decode(std::string_view text, const DecodeConfig& defaults = {});
Result<Sm80BackwardConfig> parse_sm80_backward(std::string_view text,
                                               const Sm80BackwardConfig& defaults = {});

// Whether a text starts with the type name of the Hopper or of the decode kernel's configuration. A
// text without a type name is for the sm80 kernel.
bool names_sm90_forward(std::string_view text);
bool names_decode(std::string_view text);

// The names of the fields for messages and help texts: "arch, element, out, ...".
std::string sm80_forward_fields();

// The error of a wrong field.
inline Status wrong_field(std::string_view field, int value, std::string_view supported) {
  return invalid(fmt::format("config.{}", field), fmt::format("{}", value), supported);
}

}  // namespace octavo
