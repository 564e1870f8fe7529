// SPDX-License-Identifier: Apache-2.0
#include "evolve/settings.h"

#include <fmt/format.h>

#include "base/error.h"
#include "evolve/ledger.h"

namespace octavo::evolve {
namespace {

nlohmann::json case_json(const BenchCase& s) {
  nlohmann::json json = {{"name", s.name},
                         {"batch", s.batch},
                         {"heads", s.heads},
                         {"length", s.length},
                         {"head_dim", s.head_dim}};
  if (s.heads_kv) json["heads_kv"] = *s.heads_kv;
  if (s.length_kv) json["length_kv"] = *s.length_kv;
  return json;
}

BenchCase case_from(const nlohmann::json& json) {
  BenchCase s;
  s.name = json.at("name").get<std::string>();
  s.batch = json.at("batch").get<std::int64_t>();
  s.heads = json.at("heads").get<std::int64_t>();
  s.length = json.at("length").get<std::int64_t>();
  s.head_dim = json.at("head_dim").get<std::int64_t>();
  if (json.contains("heads_kv")) s.heads_kv = json["heads_kv"].get<std::int64_t>();
  if (json.contains("length_kv")) s.length_kv = json["length_kv"].get<std::int64_t>();
  return s;
}

nlohmann::json task_json(const Task& t) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const BenchCase& s : t.shapes) shapes.push_back(case_json(s));
  return {{"kernel", t.kernel},
          {"dtype", static_cast<int>(t.dtype)},
          {"precision", static_cast<int>(t.attention.precision)},
          {"causal", static_cast<int>(t.attention.causal)},
          {"shapes", shapes},
          {"base_config", t.base_config},
          {"device", {static_cast<int>(t.device.kind), t.device.index}},
          {"gpu_isolation", {t.gpu_isolation.own_files, t.gpu_isolation.own_network}}};
}

Task task_from(const nlohmann::json& json) {
  Task t;
  t.kernel = json.at("kernel").get<std::string>();
  t.dtype = static_cast<DType>(json.at("dtype").get<int>());
  t.attention.precision = static_cast<Precision>(json.at("precision").get<int>());
  t.attention.causal = static_cast<Causal>(json.at("causal").get<int>());
  for (const nlohmann::json& s : json.at("shapes")) t.shapes.push_back(case_from(s));
  t.base_config = json.at("base_config").get<std::string>();
  t.device = {static_cast<Device::Kind>(json.at("device").at(0).get<int>()),
              json.at("device").at(1).get<int>()};
  t.gpu_isolation = {json.at("gpu_isolation").at(0).get<bool>(),
                     json.at("gpu_isolation").at(1).get<bool>()};
  return t;
}

}  // namespace

std::vector<std::string> arms_of(const Settings& settings) {
  std::vector<std::string> arms = {kMainArm};
  arms.insert(arms.end(), settings.controls.begin(), settings.controls.end());
  return arms;
}

nlohmann::json to_json(const Settings& s) {
  return {{"task", task_json(s.task)},
          {"config", s.config},
          {"seeds", s.seeds},
          {"generator", s.generator},
          {"command", s.command},
          {"command_limit_s", s.command_limit_s},
          {"script", s.script},
          {"information", name(s.information)},
          {"controls", s.controls},
          {"generations", s.generations},
          {"population", s.population},
          {"elites", s.elites},
          {"rounds", s.rounds},
          {"again_blocks", s.again_blocks},
          {"gate_limit_s", s.gate_limit_s},
          {"seed", s.seed},
          {"may_be_missing", s.may_be_missing}};
}

Result<Settings> settings_from_json(const nlohmann::json& json) {
  try {
    Settings s;
    s.task = task_from(json.at("task"));
    s.config = json.at("config").get<std::string>();
    s.seeds = json.at("seeds").get<std::vector<std::string>>();
    s.generator = json.at("generator").get<std::string>();
    s.command = json.at("command").get<std::string>();
    s.command_limit_s = json.at("command_limit_s").get<double>();
    s.script = json.at("script").get<std::string>();
    const Result<Information> information =
        information_named(json.at("information").get<std::string>());
    if (!information.ok()) return information.status();
    s.information = *information;
    s.controls = json.at("controls").get<std::vector<std::string>>();
    s.generations = json.at("generations").get<int>();
    s.population = json.at("population").get<int>();
    s.elites = json.at("elites").get<int>();
    s.rounds = json.at("rounds").get<int>();
    s.again_blocks = json.at("again_blocks").get<int>();
    s.gate_limit_s = json.at("gate_limit_s").get<double>();
    s.seed = json.at("seed").get<std::uint64_t>();
    s.may_be_missing = json.at("may_be_missing").get<std::vector<std::string>>();
    return s;
  } catch (const nlohmann::json::exception& error) {
    return Status(
        ErrorCode::invalid_argument,
        fmt::format("the ledger's settings cannot be read: {}.", printable(error.what())));
  }
}

}  // namespace octavo::evolve
