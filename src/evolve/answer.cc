// SPDX-License-Identifier: Apache-2.0
// Reads the answers of generators, programs or scripts: JSON documents with candidates.
#include <fmt/format.h>

#include "base/error.h"
#include "evolve/generator.h"
#include "files/bounded_json.h"

namespace octavo::evolve {
namespace {

constexpr int kAnswerNesting = 8;
constexpr std::size_t kMostText = std::size_t{1} << 20;  // of one candidate's diffs

Proposal refused(std::string reason) {
  Proposal proposal;
  proposal.refusal = std::move(reason);
  return proposal;
}

Result<Proposal> proposal_of(const nlohmann::json& json) {
  if (!json.is_object()) return invalid("a candidate", json.type_name(), "an object");
  Proposal proposal;
  proposal.parent = "current";
  Lever whole;
  for (const auto& [key, field] : {std::pair{"parent", &proposal.parent},
                                   {"other_parent", &proposal.other_parent},
                                   {"rationale", &proposal.rationale},
                                   {"tag", &whole.tag},
                                   {"config", &whole.config},
                                   {"patch", &whole.patch}}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_string())
      return invalid(fmt::format("the candidate's {}", key), found->type_name(), "text");
    *field = found->get<std::string>();
    if (field->size() > kMostText)
      return invalid(fmt::format("the candidate's {}", key), fmt::format("{} bytes", field->size()),
                     "up to 1 MiB");
  }
  if (const auto found = json.find("levers"); found != json.end()) {
    Result<std::vector<Lever>> levers = levers_from_json(*found);
    if (!levers.ok()) return levers.status();
    proposal.levers = *std::move(levers);
  }
  if (!whole.config.empty() || !whole.patch.empty()) {
    if (whole.tag.empty()) whole.tag = whole.patch.empty() ? "config" : "patch";
    proposal.levers.push_back(whole);
  }
  if (proposal.levers.empty())
    return invalid("a candidate", "without levers, config and patch", "one of them, or more");
  return proposal;
}

std::vector<Proposal> proposals_of_list(const nlohmann::json& list, std::size_t most) {
  if (!list.is_array())
    return {refused(
        fmt::format("The generator's candidates are {}; supported: an array.", list.type_name()))};
  std::vector<Proposal> proposals;
  for (const nlohmann::json& one : list) {
    if (proposals.size() == most) break;
    Result<Proposal> proposal = proposal_of(one);
    proposals.push_back(proposal.ok() ? *std::move(proposal)
                                      : refused(proposal.status().message()));
  }
  return proposals;
}

class Scripted final : public Generator {
 public:
  explicit Scripted(nlohmann::json script) : script_(std::move(script)) {}
  std::string_view name() const override { return "scripted"; }
  std::vector<Proposal> propose(const Request& request) override {
    const auto at = static_cast<std::size_t>(request.generation) - 1;  // the seeds are generation 0
    if (at >= script_.size()) return {};
    return proposals_of_list(script_[at], static_cast<std::size_t>(request.count));
  }

 private:
  nlohmann::json script_;
};

}  // namespace

std::vector<Proposal> proposals_of(std::string_view answer, std::size_t most) {
  const nlohmann::json json = parse_bounded(answer, kAnswerNesting);
  if (json.is_discarded())
    return {refused(fmt::format("The generator's answer of {} bytes is not JSON; it begins '{}'.",
                                answer.size(), printable(answer.substr(0, 40))))};
  if (!json.is_object() || !json.contains("candidates"))
    return {
        refused("The generator's answer has no member candidates; supported: an object with "
                "an array of that name.")};
  return proposals_of_list(json["candidates"], most);
}

Result<std::unique_ptr<Generator>> scripted_generator(std::string_view script) {
  nlohmann::json json = parse_bounded(script, kAnswerNesting);
  if (!json.is_array())
    return invalid("the script", json.is_discarded() ? "no JSON" : json.type_name(),
                   "an array with an array of candidates for each generation");
  return std::unique_ptr<Generator>(std::make_unique<Scripted>(std::move(json)));
}

}  // namespace octavo::evolve
