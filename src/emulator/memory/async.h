// SPDX-License-Identifier: Apache-2.0
// Operations that a thread starts and that complete at any later time: TMA copies, bulk copies,
// st.async, mbarrier arrivals after cp.async.
#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

class SeededOrder;
struct Thread;

// What a thread has made visible to another proxy, as an actor in the clocks of others.
struct Fences {
  Actor actor = kNobody;
  std::uint32_t until = 0;
};

class AsyncOperations {
 public:
  struct Operation {
    std::function<void()> perform;
    const Thread* thread = nullptr;
    std::uint32_t group = 0;  // of bulk stores; 0: completes on an mbarrier
    // A bulk store first reads its source, then writes global memory at any later time, also after
    // its CTA has ended; null: it has read.
    std::function<void()> read{};
  };
  void start(Operation operation) { in_flight_.push_back(std::move(operation)); }
  // Completes the oldest operation that an mbarrier waits for; false: there is none.
  bool complete_oldest_copy();
  // Completes the oldest operation; false: there is none.
  bool complete_oldest();
  // Completes any one operation. A bulk store may complete its read only.
  void complete_any(SeededOrder& schedule);
  // Completes the bulk stores of a thread up to a group, or lets them read their sources.
  void complete_groups(const Thread& thread, std::uint32_t last);
  void read_groups(const Thread& thread, std::uint32_t last);
  // Takes out the bulk stores that have read their source, and drops all other operations.
  std::list<Operation> take_stores();

 private:
  void complete(std::list<Operation>::iterator operation);

  std::list<Operation> in_flight_;
};

// cp.async.bulk groups of a thread: its stores from shared memory.
struct BulkGroups {
  Actor actor = kNobody;   // reads shared memory
  Actor writer = kNobody;  // writes global memory
  std::uint32_t open = 1;  // the group that new stores join
  std::uint32_t used = 0;  // the last group with a store in it
  std::uint32_t read = 0;  // groups up to here are known to have read their source
  Place last;              // the last store
};

}  // namespace octavo::emulator
