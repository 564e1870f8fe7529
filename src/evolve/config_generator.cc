// SPDX-License-Identifier: Apache-2.0
// Search over the configuration space: mutation and crossover, and the controls.
#include <algorithm>
#include <cmath>
#include <set>

#include "evolve/generator.h"
#include "evolve/random.h"

namespace octavo::evolve {
namespace {

constexpr int kMostTries = 2000;  // of one proposal: most combinations of fields are not feasible

struct Parent {
  std::string id, config;
};

// The kernels that may be changed, best first.
std::vector<Parent> parents_of(const Guidance& guidance) {
  std::vector<Parent> parents;
  for (const Elite& elite : guidance.elites)
    parents.push_back({elite.candidate.id, elite.candidate.config});
  if (guidance.information != Information::full || parents.empty())
    parents = {{guidance.current.id, guidance.current.config}};
  return parents;
}

// Rank r of n has the weight 1 / (r + n), as in EvoEngineer.
const Parent& drawn_by_rank(const std::vector<Parent>& parents, Random& random) {
  const auto n = static_cast<double>(parents.size());
  double sum = 0;
  for (std::size_t r = 0; r < parents.size(); ++r) sum += 1 / (static_cast<double>(r) + n);
  double at = random.unit() * sum;
  for (std::size_t r = 0; r < parents.size(); ++r) {
    at -= 1 / (static_cast<double>(r) + n);
    if (at < 0) return parents[r];
  }
  return parents.back();
}

// How often a field is moved: fields whose reversal changed the time are worth more trials.
std::vector<double> weights_of(const Guidance& guidance) {
  std::vector<double> weights(guidance.space->fields().size(), 1.0);
  if (guidance.information == Information::free) return weights;
  constexpr double kPerLog = 20;  // a lever worth 5% is moved twice as often
  for (const Insight& insight : guidance.insights) {
    if (!insight.not_measured.empty()) continue;
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (guidance.space->fields()[i].name == insight.tag)
        weights[i] = std::max(
            weights[i], 1 + std::min(3.0, kPerLog * std::abs(std::log(insight.speedup.value))));
  }
  return weights;
}

std::size_t drawn(const std::vector<double>& weights, Random& random) {
  double sum = 0;
  for (const double w : weights) sum += w;
  double at = random.unit() * sum;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((at -= weights[i]) < 0) return i;
  return weights.size() - 1;
}

// A neighbouring value of an ordered field half of the time, otherwise any.
std::string other_value(const ConfigField& field, const std::string& now, Random& random) {
  const auto found = std::find(field.values.begin(), field.values.end(), now);
  const auto at = static_cast<std::size_t>(found - field.values.begin());
  if (found != field.values.end() && field.values.size() > 2 && random.below(2) == 0) {
    const bool up = at == 0 || (at + 1 < field.values.size() && random.below(2) == 0);
    return field.values[up ? at + 1 : at - 1];
  }
  return random.of(field.values);
}

// Changes one field, sometimes more: many fields can only move together.
ConfigSpace::Changes mutation(const ConfigSpace& space, const std::string& parent,
                              const std::vector<double>& weights, Random& random) {
  std::size_t changes = 1;
  while (changes < 4 && random.below(2) == 0) ++changes;
  std::set<std::size_t> fields;
  while (fields.size() < changes) fields.insert(drawn(weights, random));
  ConfigSpace::Changes made;
  for (const std::size_t i : fields) {
    const ConfigField& field = space.fields()[i];
    made.emplace_back(field.name, other_value(field, space.value(parent, field.name), random));
  }
  return made;
}

// Takes each field in which the parents differ from either.
ConfigSpace::Changes crossover(const ConfigSpace& space, const std::string& a, const std::string& b,
                               Random& random) {
  ConfigSpace::Changes made;
  for (const ConfigField& field : space.fields()) {
    const std::string other = space.value(b, field.name);
    if (other != space.value(a, field.name) && random.below(2) == 0)
      made.emplace_back(field.name, other);
  }
  return made;
}

ConfigSpace::Changes anything(const ConfigSpace& space, Random& random) {
  ConfigSpace::Changes made;
  for (const ConfigField& field : space.fields())
    made.emplace_back(field.name, random.of(field.values));
  return made;
}

// The configurations that one propose() has already used.
class Fresh {
 public:
  explicit Fresh(const Request& request) : request_(request) {}
  // Adds a proposal if the changes give a feasible configuration that nobody has seen.
  bool add(const Parent& parent, const std::string& other, const ConfigSpace::Changes& changes,
           std::string_view how) {
    const ConfigSpace& space = *request_.guidance.space;
    return add_config(parent, other, space.with(parent.config, changes), how);
  }
  bool add_config(const Parent& parent, const std::string& other,
                  const std::optional<std::string>& config, std::string_view how) {
    const ConfigSpace& space = *request_.guidance.space;
    if (!config || *config == parent.config || request_.is_known(*config) ||
        !used_.insert(*config).second)
      return false;
    proposals.push_back(
        {parent.id, other, space.levers(parent.config, *config), std::string(how), ""});
    return true;
  }
  std::vector<Proposal> proposals;

 private:
  const Request& request_;
  std::set<std::string> used_;
};

class ConfigGenerator final : public Generator {
 public:
  std::string_view name() const override { return "config"; }
  std::vector<Proposal> propose(const Request& request) override {
    const Guidance& guidance = request.guidance;
    const std::vector<Parent> parents = parents_of(guidance);
    const std::vector<double> weights = weights_of(guidance);
    Fresh fresh(request);
    for (int slot = 0; slot < request.count; ++slot) {
      Random random(seed_for(request.seed, "slot", static_cast<std::uint64_t>(slot)));
      for (int i = 0; i < kMostTries; ++i)
        if (propose_one(*guidance.space, parents, weights, random, fresh)) break;
    }
    return std::move(fresh.proposals);
  }

 private:
  static bool propose_one(const ConfigSpace& space, const std::vector<Parent>& parents,
                          const std::vector<double>& weights, Random& random, Fresh& fresh) {
    const Parent& parent = drawn_by_rank(parents, random);
    if (parents.size() > 1 && random.below(3) == 0) {
      const Parent& other = drawn_by_rank(parents, random);
      if (other.id == parent.id) return false;
      return fresh.add(parent, other.id, crossover(space, parent.config, other.config, random),
                       "crossover");
    }
    return fresh.add(parent, "", mutation(space, parent.config, weights, random), "mutation");
  }
};

class BestOfN final : public Generator {
 public:
  std::string_view name() const override { return "best_of_n"; }
  std::vector<Proposal> propose(const Request& request) override {
    const ConfigSpace& space = *request.guidance.space;
    const std::vector<double> weights(space.fields().size(), 1.0);
    Fresh fresh(request);
    for (int slot = 0; slot < request.count; ++slot) {
      Random random(seed_for(request.seed, "slot", static_cast<std::uint64_t>(slot)));
      for (int i = 0; i < kMostTries; ++i)
        if (fresh.add({"base", space.base()}, "", mutation(space, space.base(), weights, random),
                      "mutation of the base"))
          break;
    }
    return std::move(fresh.proposals);
  }
};

class RandomSearch final : public Generator {
 public:
  std::string_view name() const override { return "random"; }
  std::vector<Proposal> propose(const Request& request) override {
    const ConfigSpace& space = *request.guidance.space;
    constexpr int kMostDraws = 50 * kMostTries;  // one in a thousand is feasible
    Fresh fresh(request);
    for (int slot = 0; slot < request.count; ++slot) {
      Random random(seed_for(request.seed, "slot", static_cast<std::uint64_t>(slot)));
      for (int i = 0; i < kMostDraws; ++i)
        if (fresh.add({"base", space.base()}, "", anything(space, random), "drawn at random"))
          break;
    }
    return std::move(fresh.proposals);
  }
};

class Exhaustive final : public Generator {
 public:
  std::string_view name() const override { return "exhaustive"; }
  std::vector<Proposal> propose(const Request& request) override {
    const ConfigSpace& space = *request.guidance.space;
    constexpr std::size_t kMost = 100000;
    if (all_.empty()) all_ = space.all(kMost);
    Fresh fresh(request);
    for (const std::string& config : all_) {
      if (static_cast<int>(fresh.proposals.size()) == request.count) break;
      fresh.add_config({"base", space.base()}, "", config, "the next of all");
    }
    return std::move(fresh.proposals);
  }

 private:
  std::vector<std::string> all_;
};

}  // namespace

std::unique_ptr<Generator> config_generator() { return std::make_unique<ConfigGenerator>(); }
std::unique_ptr<Generator> random_generator() { return std::make_unique<RandomSearch>(); }
std::unique_ptr<Generator> best_of_n_generator() { return std::make_unique<BestOfN>(); }
std::unique_ptr<Generator> exhaustive_generator() { return std::make_unique<Exhaustive>(); }

}  // namespace octavo::evolve
