// SPDX-License-Identifier: Apache-2.0
#include "evolve/candidate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "gpu/jit/sha256.h"

namespace octavo::evolve {
namespace {

// The text of one member; empty if there is none.
Result<std::string> string_member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::string();
  if (!found->is_string()) return invalid(fmt::format("the lever's {}", key), "no text", "text");
  return found->get<std::string>();
}

}  // namespace

std::string content_digest(const Candidate& candidate) {
  Sha256 hash;
  hash.field(candidate.kernel).field(candidate.config).field(candidate.patch);
  return hash.finish_hex();
}

nlohmann::json to_json(const std::vector<Lever>& levers) {
  nlohmann::json list = nlohmann::json::array();
  for (const Lever& lever : levers) {
    nlohmann::json one = {{"tag", lever.tag}};
    if (!lever.config.empty()) one["config"] = lever.config;
    if (!lever.patch.empty()) one["patch"] = lever.patch;
    list.push_back(std::move(one));
  }
  return list;
}

Result<std::vector<Lever>> levers_from_json(const nlohmann::json& json) {
  if (!json.is_array()) return invalid("levers", json.type_name(), "an array of objects");
  constexpr std::size_t kMost = 32, kMostTag = 64;
  if (json.size() > kMost) return invalid("levers", fmt::format("{}", json.size()), "up to 32");
  std::vector<Lever> levers;
  for (const nlohmann::json& one : json) {
    if (!one.is_object()) return invalid("a lever", one.type_name(), "an object");
    Lever lever;
    for (const auto& [key, field] :
         {std::pair{"tag", &lever.tag}, {"config", &lever.config}, {"patch", &lever.patch}}) {
      Result<std::string> text = string_member(one, key);
      if (!text.ok()) return text.status();
      *field = *std::move(text);
    }
    if (lever.config.empty() && lever.patch.empty())
      return invalid("a lever", "without config and patch", "one of the two, or both");
    if (lever.tag.size() > kMostTag)
      return invalid("a lever's tag", fmt::format("{} bytes", lever.tag.size()), "up to 64");
    if (lever.tag.empty()) lever.tag = lever.patch.empty() ? lever.config : "patch";
    levers.push_back(std::move(lever));
  }
  return levers;
}

}  // namespace octavo::evolve
