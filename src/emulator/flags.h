// SPDX-License-Identifier: Apache-2.0
// Flags in global memory, by which CTAs of a grid wait for each other: red.release and ld.acquire.
//
// A flag is a word that red.release has changed. Additions are atomic, so an ld.acquire that reads
// a sum comes after all additions in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

struct Thread;

// A thread's last ld.acquire.
struct Poll {
  const void* flag = nullptr;
  std::uint32_t value = 0;
};

class Flags {
 public:
  // Adds the thread's knowledge to that of the flag.
  void release(Thread& thread, const void* flag);
  // Adds the flag's knowledge to that of the thread.
  void acquire(Thread& thread, const void* flag);

  void add_waiting(Thread& thread) { waiting_.push_back(&thread); }
  // Removes and returns the threads that wait for a flag in these bytes, or all of them.
  std::vector<Thread*> take_waiting(const void* data, std::size_t bytes);
  std::vector<Thread*> take_all_waiting();

 private:
  std::map<const void*, ClocksOfClusters> released_;
  std::vector<Thread*> waiting_;
};

// Blocks the calling thread, if it has read the flag with this value before, until the flag changes
// or nothing else can run.
void wait_for_flag(const std::uint32_t* flag, Place place);

}  // namespace octavo::emulator
