// SPDX-License-Identifier: Apache-2.0
// Counts a kernel's use of the memory system and the execution units: bank conflicts, sectors,
// tensor and exponential instructions.
//
// Loads and stores of single threads are regrouped into warp instructions: between two
// synchronisations of a warp, the n-th access of a lane at a line belongs with the n-th access of
// the other lanes. That is exact if lanes leave a loop early, and wrong only for lanes that skip
// one iteration and execute the next.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/report.h"

namespace octavo::emulator {

class Measures {
 public:
  // A line of the kernel that accesses memory.
  struct Line {
    Place place;
    bool shared = true;         // else global
    std::int64_t requests = 0;  // by warps
    std::int64_t needed = 0;    // wavefronts without a conflict; sectors if packed densely
    std::int64_t taken = 0;     // wavefronts; sectors touched
  };
  struct Count {
    const char* instruction = "";
    std::int64_t times = 0;  // per warp for tensor instructions, per thread for others
  };

  bool on = false;

  void count(const char* instruction, std::int64_t times = 1);
  // Multiplications of a warp's product on the tensor cores, by the format of an operand.
  void count_products(const char* format, std::int64_t products);
  // One lane's part of a warp's access. `warp` is unique in the cluster.
  void access(int warp, int lane, Place place, bool shared, std::uint64_t address,
              std::uint32_t bytes);
  // A whole warp's access to 16-byte rows of shared memory, eight at a time.
  void rows(Place place, const std::uint32_t* addresses, int count);
  // The warp has synchronised: later accesses of its lanes belong to a new instruction.
  void flush(int warp);

  const std::vector<Line>& lines() const { return lines_; }
  const std::vector<Count>& counts() const { return counts_; }
  const std::vector<Count>& products() const { return products_; }
  std::int64_t counted(const char* instruction) const;
  std::int64_t bank_conflicts() const;

 private:
  struct Group {
    Place place;
    bool shared = true;
    std::uint32_t bytes = 0;
    std::uint32_t lanes = 0;
    std::array<std::uint64_t, 32> addresses{};
  };
  Line& line(Place place, bool shared);
  void add(const Group& group);
  static void add(std::vector<Count>& counts, const char* name, std::int64_t times);

  std::vector<std::vector<Group>> open_;  // by warp
  std::vector<Line> lines_;
  std::vector<Count> counts_, products_;
};

}  // namespace octavo::emulator
