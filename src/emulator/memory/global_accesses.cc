// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/global_accesses.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

constexpr std::uintptr_t kWordBytes = 4;

bool changes(GlobalUse use) { return use == GlobalUse::write || use == GlobalUse::update; }

// Whether two accesses to the same bytes conflict if nothing orders them.
bool may_conflict(GlobalUse a, GlobalUse b) {
  const auto strong = [](GlobalUse use) {
    return use == GlobalUse::update || use == GlobalUse::strong_read;
  };
  return (changes(a) || changes(b)) && !(strong(a) && strong(b));
}

// Whether the actor's operations may still be in flight after their instruction has been executed.
bool is_copy(Acts acts) { return acts != Acts::thread; }

}  // namespace

bool GlobalAccesses::ordered(const Record& earlier, const Thread& thread) const {
  return earlier.cluster == thread.cluster().number
             ? thread.known.covers(earlier.actor, earlier.number)
             : thread.known.covers(earlier.cluster, earlier.actor, earlier.number);
}

void GlobalAccesses::fence(Thread& thread, Actor fence) {
  const std::pair key{thread.cluster().number, thread.known.self()};
  fences_[key] = fence;
  Clock known;
  thread.known.release_into(known);
  visible_[key] = std::move(known);
}

// The fence may be the writer's, or that of the thread that starts the copy.
bool GlobalAccesses::fenced(const Record& written, const Thread& thread) const {
  const std::uint32_t own = thread.cluster().number;
  if (const auto at = visible_.find({own, thread.known.self()}); at != visible_.end()) {
    const Clock& visible = at->second;
    const std::uint32_t number = written.cluster == own
                                     ? visible.at(written.actor)
                                     : visible.at(written.cluster, written.actor);
    if (number >= written.number) return true;
  }
  const auto at = fences_.find({written.cluster, written.actor});
  if (at == fences_.end()) return false;
  return written.cluster == own ? thread.known.covers(at->second, written.number)
                                : thread.known.covers(written.cluster, at->second, written.number);
}

void GlobalAccesses::report(const By& by, const Record& earlier, const Record& now,
                            const void* data) {
  const bool copy = is_copy(earlier.acts);
  const char* const verb = changes(now.use) ? "writes" : "reads";
  const char* const done = changes(earlier.use) ? "write" : "read";
  const std::string who =
      fmt::format("{}thread {} of CTA {}", copy ? "a copy of " : "", earlier.thread, earlier.block);
  const char* why = "nothing orders the two CTAs";
  if (copy)
    why = "no wait for that copy stands between";
  else if (earlier.block == now.block)
    why = "no barrier stands between the two";
  Hazard hazard = Hazard::read_write_race;
  if (copy)
    hazard = changes(earlier.use) ? Hazard::copy_in_flight : Hazard::operand_in_flight;
  else if (changes(earlier.use) && changes(now.use))
    hazard = Hazard::write_write_race;
  machine_.find(hazard, now.place, fmt::format("{} what {} may still {}: {}", verb, who, done, why),
                fmt::format("global, {}", machine_.global().describe(data)), earlier.place,
                by.thread);
}

void GlobalAccesses::check(const By& by, const Record& earlier, const Record& now,
                           const void* data) {
  const auto where = [&] { return fmt::format("global, {}", machine_.global().describe(data)); };
  if (may_conflict(earlier.use, now.use) && !ordered(earlier, *by.thread)) {
    report(by, earlier, now, data);
    return;
  }
  const bool non_coherent =
      earlier.use == GlobalUse::non_coherent_read || now.use == GlobalUse::non_coherent_read;
  if (non_coherent && may_conflict(earlier.use, now.use))
    machine_.find(Hazard::non_coherent_read, now.place,
                  "this grid reads the bytes by ld.global.nc and writes them: such a read need not "
                  "see any write of its grid",
                  where(), earlier.place, by.thread);
  if (changes(earlier.use) && earlier.proxy == Proxy::generic && by.proxy == Proxy::async &&
      !fenced(earlier, *by.thread))
    machine_.find(Hazard::missing_proxy_fence, now.place,
                  fmt::format("the async proxy need not see what thread {} of CTA {} wrote: no "
                              "fence.proxy.async for global memory between its write and this",
                              earlier.thread, earlier.block),
                  where(), earlier.place, by.thread);
}

void GlobalAccesses::note_state(State& state, const By& by, const Record& now, const void* data) {
  if (state.written.actor != kNobody) check(by, state.written, now, data);
  for (const Record& earlier : state.others) check(by, earlier, now, data);
  if (now.use == GlobalUse::write) {
    state.written = now;
    state.others.clear();
    return;
  }
  // An earlier access of the same kind that happened before this one can be dropped: whatever is
  // ordered after this access is also ordered after the earlier one.
  std::erase_if(state.others, [&](const Record& earlier) {
    return earlier.use == now.use && earlier.proxy == now.proxy && ordered(earlier, *by.thread);
  });
  state.others.push_back(now);
}

GlobalAccesses::Word& GlobalAccesses::word_at(std::uintptr_t address) {
  const std::uintptr_t word = address / kWordBytes, number = word / kPageWords;
  if (last_page_ == nullptr || last_number_ != number) {
    last_number_ = number;
    last_page_ = &pages_[number];
  }
  return (*last_page_)[word % kPageWords];
}

void GlobalAccesses::note(const By& by, GlobalUse use, const void* data, std::size_t bytes) {
  if (machine_.global().is_input(data)) return;
  const Thread& thread = *by.thread;
  const ActorInfo& actor = thread.cluster().actors[by.access.actor];
  const Record now{thread.cluster().number,
                   by.access.actor,
                   by.access.number,
                   thread.cta->block,
                   thread.index,
                   actor.acts,
                   use,
                   by.proxy,
                   by.access.place};
  const auto begin = reinterpret_cast<std::uintptr_t>(data), end = begin + bytes;
  for (std::uintptr_t at = begin; at < end;) {
    const std::uintptr_t next = std::min(at / kWordBytes * kWordBytes + kWordBytes, end);
    Word& word = word_at(at);
    if (next - at < kWordBytes && !word.bytes) {
      word.bytes = std::make_unique<std::array<State, 4>>();
      word.bytes->fill(word.whole);
    }
    if (!word.bytes) {
      note_state(word.whole, by, now, reinterpret_cast<const void*>(at));
    } else {
      for (std::uintptr_t byte = at; byte < next; ++byte)
        note_state((*word.bytes)[byte % kWordBytes], by, now, reinterpret_cast<const void*>(byte));
    }
    at = next;
  }
}

}  // namespace octavo::emulator
