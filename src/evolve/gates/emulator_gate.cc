// The emulator gate: the candidate's own sources on the CPU, with every hazard that the emulator
// finds and every result held against fp64, under three schedules. Needs no GPU.
#include "evolve/gates/emulated_judge.h"
#include "evolve/gates/standard_gates.h"

namespace octavo::evolve {
namespace {

class EmulatorGate : public Gate {
 public:
  std::string_view name() const override { return "emulator"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    return emulate_cases(*subject, context, name(), edge_cases(subject->config),
                         {std::nullopt, 1, 2});
  }
};

}  // namespace

std::unique_ptr<Gate> emulator_gate() { return std::make_unique<EmulatorGate>(); }

}  // namespace octavo::evolve
