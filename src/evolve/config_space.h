// SPDX-License-Identifier: Apache-2.0
// The configurations that a search may visit: for one kernel family, the fields that do not change
// what is computed, with the values of each; feasible() decides which combinations exist.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evolve/candidate.h"
#include "evolve/gates/kernel_family.h"
#include "octavo/octavo.hpp"

namespace octavo::evolve {

struct ConfigField {
  std::string name;
  std::vector<std::string> values;
};

class ConfigSpace {
 public:
  // Around a configuration, as text with or without the name of its family, or of a kernel of the
  // ladder, which has no fields to change. Its other fields (operands, head_dim, scores, output,
  // modifiers) are the same in every configuration.
  static Result<ConfigSpace> around(std::string_view config);

  const std::string& kernel() const { return kernel_; }  // "sm90_forward"
  const std::string& base() const { return base_; }      // the whole configuration
  const std::vector<ConfigField>& fields() const { return fields_; }

  // The whole configuration that a text with some fields stands for; the others are those of
  // `from`, a whole configuration. An error: it does not parse, changes another field than those
  // above, or is not feasible.
  Result<std::string> complete(std::string_view text, const std::string& from) const;
  Result<std::string> complete(std::string_view text) const { return complete(text, base_); }
  // The same for values of the fields above, many times faster: a random search draws a thousand
  // configurations for each feasible one.
  using Changes = std::vector<std::pair<std::string, std::string>>;
  std::optional<std::string> with(const std::string& from, const Changes& changes) const;
  std::string value(const std::string& config, std::string_view field) const;
  // One lever for each field of the space in which two whole configurations differ.
  std::vector<Lever> levers(const std::string& from, const std::string& to) const;
  // The fields that differ from the family's defaults, for tables.
  std::string brief(const std::string& config) const;
  // All feasible configurations, in the order of the fields' values; at most so many.
  std::vector<std::string> all(std::size_t most) const;

 private:
  Result<KernelConfig> parse(std::string_view text, const KernelConfig& defaults) const;
  // A whole configuration, parsed once; null if it cannot be.
  const KernelConfig* parsed_whole(const std::string& config) const;

  std::string kernel_, base_;
  KernelConfig base_config_;
  std::vector<ConfigField> fields_;
  mutable std::map<std::string, KernelConfig> parsed_;
};

}  // namespace octavo::evolve
