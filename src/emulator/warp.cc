// SPDX-License-Identifier: Apache-2.0
// Warps: synchronisation of their lanes, and diagnosis when some lanes do not arrive.
#include <fmt/format.h>

#include <bit>
#include <map>
#include <utility>

#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

// "0-31", "0, 4-7"
std::string ranges(const std::vector<int>& sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text +=
        last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return text;
}

std::string lanes_text(std::uint32_t lanes) {
  std::vector<int> list;
  for (int lane = 0; lane < kWarpSize; ++lane)
    if ((lanes >> lane & 1) != 0) list.push_back(lane);
  return ranges(list);
}

std::string waits_for(const Cta& cta, const Wait& wait) {
  switch (wait.what) {
    case Wait::For::warp:
      return fmt::format("wait for the rest of their warp, {}", describe(wait.place));
    case Wait::For::barrier: {
      const NamedBarrier& barrier = cta.barriers[wait.object];
      return fmt::format("wait for barrier {} ({} of {} threads have come), {}", wait.object,
                         barrier.arrived, barrier.expected, describe(wait.place));
    }
    case Wait::For::mbarrier: {
      const auto at = cta.mbarriers.find(wait.object);
      return fmt::format("wait for the phase of parity {} of mbarrier {:#x} ({}), {}", wait.parity,
                         wait.object + SharedMemory::kBase,
                         at == cta.mbarriers.end() ? "which is no more" : describe(at->second),
                         describe(wait.place));
    }
    case Wait::For::cluster:
      return fmt::format("wait for the other CTAs of the cluster, {}", describe(wait.place));
    case Wait::For::registers:
      return fmt::format("wait for {} registers a thread ({} are free in the CTA), {}", wait.object,
                         cta.free_registers, describe(wait.place));
    case Wait::For::flag:
      return fmt::format("wait for {} to change, {}",
                         cta.threads[0]->machine->global().describe(wait.flag),
                         describe(wait.place));
    case Wait::For::nothing:
      break;
  }
  return "do not run";
}

}  // namespace

void arrive_at(Place place, void* arguments) {
  Thread& t = self();
  Warp& w = *t.warp;
  const std::uint32_t bit = 1u << t.lane;
  if (w.met == 0) {
    w.meeting = place;
  } else if (!(w.meeting == place)) {
    t.machine->stop(Hazard::partial_warp, place,
                    fmt::format("lane {} comes here while lanes {} of its warp wait for it in {}",
                                t.lane, lanes_text(w.met), describe(w.meeting)));
  }
  w.met |= bit;
  w.arguments[static_cast<std::size_t>(t.lane)] = arguments;
}

bool last_of_warp() { return self().warp->met == ~0u; }

void finish_meeting() {
  Thread& t = self();
  Warp& w = *t.warp;
  w.met = 0;
  t.machine->measures().flush(w.measured_as);
  if (!w.past_waits.empty()) {
    std::vector<std::uint32_t> numbers;
    for (const Thread* lane : w.lanes) numbers.push_back(lane->known.now());
    for (const auto& wait : std::exchange(w.past_waits, {})) wait->met = numbers;
  }
  for (Thread* lane : w.lanes)
    if (lane != &t) t.machine->wake(*lane);
}

// Finds lanes that wait for other lanes of their warp that have ended or wait forever.
void Machine::check_convergence(Warp& warp) {
  if (warp.met == 0 || (warp.met | warp.done) != ~0u) return;
  Thread& first = *warp.lanes[static_cast<std::size_t>(std::countr_zero(warp.met))];
  report_.add({.hazard = Hazard::partial_warp,
               .kernel = launch_.kernel,
               .place = warp.meeting,
               .other = {},
               .who = describe(first),
               .address = "",
               .text = fmt::format("lanes {} wait for lanes {} of their warp, which have ended",
                                   lanes_text(warp.met), lanes_text(warp.done))});
  stopped_ = true;
}

void Machine::report_deadlock() {
  // Groups threads by what they wait for.
  std::map<std::string, std::vector<int>> groups;
  const Thread* first = nullptr;
  bool registers = false;
  for (const Cta* cta : running_ctas())
    for (const auto& thread : cta->threads) {
      if (first == nullptr && !thread->done) first = thread.get();
      registers = registers || thread->wait.what == Wait::For::registers;
      groups[fmt::format("CTA {}: threads {{}} {}", cta->block,
                         thread->done ? "have ended" : waits_for(*cta, thread->wait))]
          .push_back(thread->index);
    }
  std::string text = "no thread can run";
  for (const auto& [what, threads] : groups)
    text += "\n    " + fmt::format(fmt::runtime(what), ranges(threads));
  report_.add({.hazard = registers ? Hazard::register_budget : Hazard::deadlock,
               .kernel = launch_.kernel,
               .place = first->wait.place,
               .other = {},
               .who = describe(*first),
               .address = "",
               .text = text});
}

}  // namespace octavo::emulator
