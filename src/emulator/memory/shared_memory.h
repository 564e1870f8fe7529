// SPDX-License-Identifier: Apache-2.0
// A CTA's shared memory: its bytes, and the last accesses to each of them.
//
// Bytes are tracked in chunks of sixteen, which most instructions move whole; a chunk that is
// accessed in parts has a state per word, and a word that is accessed in parts a state per byte.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

class Machine;
struct Thread;

// The two proxies, whose accesses need a fence between them.
enum class Proxy : std::uint8_t { generic, async };

struct Access {
  Actor actor = kNobody;
  std::uint32_t number = 0;
  Place place;
};

// The originator of an access: the access itself, and the thread whose knowledge applies to it.
struct By {
  const Thread* thread = nullptr;
  Access access;
  Proxy proxy = Proxy::generic;
};

class SharedMemory {
 public:
  // The first address. It is not 0, so that an offset mistaken for an address is detected.
  static constexpr std::uint32_t kBase = 1024;

  SharedMemory(Machine& machine, std::uint32_t bytes);

  std::uint32_t bytes() const { return static_cast<std::uint32_t>(data_.size()); }
  std::uint8_t* at(std::uint32_t offset) { return data_.data() + offset; }
  const std::uint8_t* at(std::uint32_t offset) const { return data_.data() + offset; }

  // Checks for hazards and records the access. The offsets must be in bounds.
  void read(const By& by, std::uint32_t offset, std::uint32_t bytes);
  void write(const By& by, std::uint32_t offset, std::uint32_t bytes);
  // Marks eight bytes as an mbarrier, which must not be written, or as ordinary bytes again.
  void reserve(std::uint32_t offset, bool reserved);

 private:
  struct State {
    Access written;
    Proxy through = Proxy::generic;
    std::vector<Access>
        reads;  // since that write; some that happened before a later one are left out
  };
  struct Word {
    State whole;
    std::unique_ptr<std::array<State, 4>> bytes;
  };
  struct Chunk {
    State whole;
    std::unique_ptr<std::array<Word, 4>> words;
  };

  // Calls visit(state, offset, bytes) for the states of an access.
  template <class Visit>
  void visit(std::uint32_t offset, std::uint32_t bytes, const Visit& visit);
  void read_state(State& state, const By& by, std::uint32_t offset, std::uint32_t bytes);
  void drop_ordered_reads(std::vector<Access>& reads, const By& by);
  void check_write(const State& state, const By& by, std::uint32_t offset, std::uint32_t bytes);

  Machine& machine_;
  std::vector<std::uint8_t> data_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> mbarriers_;
  // For each actor, the last call of drop_ordered_reads that met one of its reads.
  std::vector<std::uint64_t> readers_;
  std::uint64_t drops_ = 0;
};

}  // namespace octavo::emulator
