// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulator/hazards.h"
#include "emulator/machine.h"

namespace octavo::emulator {

SharedMemory::SharedMemory(Machine& machine, std::uint32_t bytes)
    : machine_(machine), data_(bytes, 0xcd), chunks_((bytes + 15) / 16) {}

void SharedMemory::read_state(State& state, const By& by, std::uint32_t offset,
                              std::uint32_t bytes) {
  const Knowledge& known = by.thread->known;
  const Access& written = state.written;
  const auto report = [&](const Conflict& conflict) {
    report_conflict(machine_, by, written, conflict, offset, bytes);
  };
  if (written.actor == kNobody) {
    report({.kind = Conflict::Kind::uninitialised});
  } else if (!known.covers(written.actor, written.number)) {
    report({.kind = Conflict::Kind::read_after_write});
  } else if (by.proxy == Proxy::async && state.through == Proxy::generic &&
             !by.thread->cluster().fenced(written, known)) {
    report({.kind = Conflict::Kind::no_proxy_fence});
  }
  if (state.reads.size() == state.reads.capacity()) {
    drop_ordered_reads(state.reads, by);
    // At least half of the list stays free, so that a read costs little on average.
    state.reads.reserve(2 * std::max<std::size_t>(state.reads.size(), 4));
  }
  state.reads.push_back(by.access);
}

// Drops reads that happened before another one, which is the same actor's last read or `by`:
// whatever is ordered after the later read is also ordered after the earlier one.
void SharedMemory::drop_ordered_reads(std::vector<Access>& reads, const By& by) {
  const Knowledge& known = by.thread->known;
  if (readers_.size() <= by.access.actor) readers_.resize(by.access.actor + 1);
  readers_[by.access.actor] = ++drops_;
  std::size_t first = reads.size();
  for (std::size_t i = reads.size(); i-- > 0;) {
    const Access r = reads[i];
    if (readers_.size() <= r.actor) readers_.resize(r.actor + 1);
    if (readers_[r.actor] == drops_) continue;
    readers_[r.actor] = drops_;
    if (by.proxy == Proxy::generic && known.covers(r.actor, r.number)) continue;
    reads[--first] = r;
  }
  reads.erase(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(first));
}

void SharedMemory::check_write(const State& state, const By& by, std::uint32_t offset,
                               std::uint32_t bytes) {
  const Knowledge& known = by.thread->known;
  const Access& written = state.written;
  if (written.actor != kNobody) {
    if (!known.covers(written.actor, written.number)) {
      report_conflict(machine_, by, written, {.kind = Conflict::Kind::write_after_write}, offset,
                      bytes);
    } else if (by.proxy == Proxy::async && state.through == Proxy::generic &&
               !by.thread->cluster().fenced(written, known)) {
      report_conflict(machine_, by, written, {.kind = Conflict::Kind::no_proxy_fence}, offset,
                      bytes);
    }
  }
  for (const Access& r : state.reads)
    if (!known.covers(r.actor, r.number))
      report_conflict(machine_, by, r, {.kind = Conflict::Kind::write_after_read}, offset, bytes);
}

template <class Visit>
void SharedMemory::visit(std::uint32_t offset, std::uint32_t bytes, const Visit& visit) {
  const std::uint32_t end = offset + bytes;
  for (std::uint32_t at = offset; at < end;) {
    Chunk& chunk = chunks_[at / 16];
    if (!chunk.words && at % 16 == 0 && end - at >= 16) {
      visit(chunk.whole, at, 16);
      at += 16;
      continue;
    }
    if (!chunk.words) {
      chunk.words = std::make_unique<std::array<Word, 4>>();
      for (Word& word : *chunk.words) word.whole = chunk.whole;
    }
    Word& word = (*chunk.words)[at % 16 / 4];
    if (!word.bytes && at % 4 == 0 && end - at >= 4) {
      visit(word.whole, at, 4);
      at += 4;
      continue;
    }
    if (!word.bytes) {
      word.bytes = std::make_unique<std::array<State, 4>>();
      word.bytes->fill(word.whole);
    }
    visit((*word.bytes)[at % 4], at, 1);
    ++at;
  }
}

void SharedMemory::read(const By& by, std::uint32_t offset, std::uint32_t bytes) {
  visit(offset, bytes, [&](State& state, std::uint32_t at, std::uint32_t count) {
    read_state(state, by, at, count);
  });
}

void SharedMemory::reserve(std::uint32_t offset, bool reserved) {
  std::erase(mbarriers_, offset);
  if (reserved) mbarriers_.push_back(offset);
}

void SharedMemory::write(const By& by, std::uint32_t offset, std::uint32_t bytes) {
  for (const std::uint32_t mbarrier : mbarriers_)
    if (offset < mbarrier + 8 && mbarrier < offset + bytes)
      machine_.find(Hazard::mbarrier_misuse, by.access.place,
                    "the bytes of an mbarrier in use are written",
                    fmt::format("mbarrier {:#x}", mbarrier + kBase), {}, by.thread);
  visit(offset, bytes, [&](const State& state, std::uint32_t at, std::uint32_t count) {
    check_write(state, by, at, count);
  });
  // Words and chunks that are written whole have one state again.
  for (std::uint32_t at = (offset + 3) / 4 * 4; at + 4 <= offset + bytes; at += 4) {
    Chunk& chunk = chunks_[at / 16];
    if (!chunk.words) continue;
    (*chunk.words)[at % 16 / 4].bytes.reset();
    if (at % 16 == 0 && at + 16 <= offset + bytes) chunk.words.reset();
  }
  visit(offset, bytes, [&](State& state, std::uint32_t, std::uint32_t) {
    state.written = by.access;
    state.through = by.proxy;
    state.reads.clear();
  });
}

}  // namespace octavo::emulator
