// SPDX-License-Identifier: Apache-2.0
// Writes JSON in the library's envelope, for commands whose results have no report type in the
// library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "octavo/evidence.hpp"

namespace octavo::cli {

using Json = nlohmann::ordered_json;

inline Json envelope(std::string_view kind) {
  return {{"schema", kSchemaVersion}, {"kind", kind}, {"version", version()}};
}

// Removes the envelope of a report of the library, to nest it in another report.
inline Json nested(const std::string& report_text) {
  Json json = Json::parse(report_text);
  for (const char* key : {"schema", "kind", "version"}) json.erase(key);
  return json;
}

// File names need not be UTF-8; numbers that are not finite become null.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace octavo::cli
