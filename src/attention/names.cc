// SPDX-License-Identifier: Apache-2.0
// Names of the enumerations of a problem, and their parsers.
#include <array>
#include <string>

#include "base/error.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

template <class Enum>
struct Named {
  Enum value;
  std::string_view name;
};

constexpr std::array<Named<Causal>, 3> kCausals = {{{Causal::none, "none"},
                                                    {Causal::top_left, "top_left"},
                                                    {Causal::bottom_right, "bottom_right"}}};

constexpr std::array<Named<Precision>, 10> kPrecisions = {{{Precision::native, "native"},
                                                           {Precision::fp16, "fp16"},
                                                           {Precision::bf16, "bf16"},
                                                           {Precision::fp8, "fp8"},
                                                           {Precision::fp8_mixed, "fp8_mixed"},
                                                           {Precision::fp8_fast, "fp8_fast"},
                                                           {Precision::int8, "int8"},
                                                           {Precision::int8_mixed, "int8_mixed"},
                                                           {Precision::sim8, "sim8"},
                                                           {Precision::automatic, "auto"}}};

constexpr std::array<Named<Operand>, 3> kOperands = {
    {{Operand::q, "q"}, {Operand::k, "k"}, {Operand::v, "v"}}};

constexpr std::array<Named<ErrorCode>, 6> kErrorCodes = {
    {{ErrorCode::ok, "ok"},
     {ErrorCode::invalid_argument, "invalid argument"},
     {ErrorCode::unsupported, "unsupported"},
     {ErrorCode::out_of_memory, "out of memory"},
     {ErrorCode::device_error, "device error"},
     {ErrorCode::io_error, "input/output error"}}};

template <class Table, class Enum>
std::string_view find_name(const Table& table, Enum value) {
  for (const auto& entry : table)
    if (entry.value == value) return entry.name;
  return "unknown";
}

template <class Enum, std::size_t N>
Result<Enum> find_value(const std::array<Named<Enum>, N>& table, std::string_view argument,
                        std::string_view text) {
  return without_exceptions([&]() -> Result<Enum> {
    std::string supported;
    for (const auto& entry : table) {
      if (entry.name == text) return entry.value;
      if (!supported.empty()) supported += ", ";
      supported += entry.name;
    }
    return invalid(argument, fmt::format("'{}'", text), supported);
  });
}

}  // namespace

std::string_view name(Causal causal) { return find_name(kCausals, causal); }
Result<Causal> parse_causal(std::string_view text) { return find_value(kCausals, "causal", text); }

std::string_view name(Precision precision) { return find_name(kPrecisions, precision); }
Result<Precision> parse_precision(std::string_view text) {
  return find_value(kPrecisions, "precision", text);
}

std::string_view name(Operand operand) { return find_name(kOperands, operand); }
Result<Operand> parse_operand(std::string_view text) {
  return find_value(kOperands, "operand", text);
}

std::string_view name(ErrorCode code) { return find_name(kErrorCodes, code); }

}  // namespace octavo
