// SPDX-License-Identifier: Apache-2.0
// The accesses of a launch to the global memory that it may write, to find races between threads of
// one CTA and between CTAs.
//
// Each 4-byte word has its last write, and the reads and atomic updates since then; a word that is
// accessed in parts has a state per byte. Inputs are not tracked: nothing writes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/memory/shared_memory.h"

namespace octavo::emulator {

enum class Acts : std::uint8_t;

// How an access reads or writes global memory. Atomic updates need no order among themselves or
// with strong reads (ld.acquire, ld.relaxed).
enum class GlobalUse : std::uint8_t { read, strong_read, non_coherent_read, write, update };

class GlobalAccesses {
 public:
  explicit GlobalAccesses(Machine& machine) : machine_(machine) {}

  // Checks for hazards and records the access. The bytes must be in a tensor.
  void note(const By& by, GlobalUse use, const void* data, std::size_t bytes);
  // A fence.proxy.async of a thread. Its accesses so far become visible to the async proxy for
  // everyone who knows of `fence`, and everything that it knows becomes visible to its own later
  // copies.
  void fence(Thread& thread, Actor fence);

 private:
  // An access, described by itself because its thread may have ended.
  struct Record {
    std::uint32_t cluster = 0;
    Actor actor = kNobody;
    std::uint32_t number = 0;
    int block = 0, thread = 0;
    Acts acts{};
    GlobalUse use = GlobalUse::read;
    Proxy proxy = Proxy::generic;
    Place place;
  };
  struct State {
    Record written;
    std::vector<Record> others;  // reads and updates since then
  };
  struct Word {
    State whole;
    std::unique_ptr<std::array<State, 4>> bytes;
  };

  Word& word_at(std::uintptr_t address);
  void note_state(State& state, const By& by, const Record& now, const void* data);
  void check(const By& by, const Record& earlier, const Record& now, const void* data);
  bool ordered(const Record& earlier, const Thread& thread) const;
  bool fenced(const Record& written, const Thread& thread) const;
  void report(const By& by, const Record& earlier, const Record& now, const void* data);

  Machine& machine_;
  // By address; neighbouring words are often accessed one after another.
  static constexpr std::size_t kPageWords = 64;
  using Page = std::array<Word, kPageWords>;
  std::unordered_map<std::uintptr_t, Page> pages_;
  std::uintptr_t last_number_ = 0;
  Page* last_page_ = nullptr;
  std::map<std::pair<std::uint32_t, Actor>, Actor> fences_;   // of threads, by cluster and actor
  std::map<std::pair<std::uint32_t, Actor>, Clock> visible_;  // what each such thread knew
};

}  // namespace octavo::emulator
