// SPDX-License-Identifier: Apache-2.0
// The faults that the emulator found in a kernel, each once per place in the source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/ptx/target.cuh"

namespace octavo::emulator {

// An instruction at a line of device code. The name is a literal and is compared as text.
struct Place {
  const char* instruction = "";
  Site site;
};
inline bool operator==(const Place& a, const Place& b) {
  // The same literal nearly always has one address.
  const auto same = [](const char* x, const char* y) { return x == y || std::string_view(x) == y; };
  return a.site.line == b.site.line && same(a.instruction, b.instruction) &&
         same(a.site.file, b.site.file);
}
std::string describe(const Place& place);  // "ldmatrix at device/sm80/operands.cuh:54"

enum class Hazard : std::uint8_t {
  uninitialised_read,   // shared bytes that nothing wrote
  read_write_race,      // a read and a write of the same bytes, in no order
  write_write_race,     // two writes of the same bytes, in no order
  copy_in_flight,       // bytes read or written while a copy may still write them
  operand_in_flight,    // bytes written while a copy or an MMA may still read them
  missing_proxy_fence,  // a generic write that the async proxy may not see
  wgmma_order,          // wgmma without its fence, commit or wait
  register_in_flight,   // registers of a wgmma in flight read or changed
  mbarrier_misuse,      // use before its init is visible or after its end, or too many arrivals
  transaction_bytes,    // an mbarrier's byte count does not add up
  barrier_count,        // a named barrier with wrong or different counts
  partial_warp,         // an aligned instruction without all of its warp
  peer_gone,            // shared memory of a CTA that has ended
  unfinished_store,     // exit or reuse before a bulk store is complete
  missing_grid_wait,    // global memory accessed before griddepcontrol.wait
  non_coherent_read,    // ld.global.nc of memory that changes while the grid runs
  misaligned,           //
  out_of_bounds,        //
  register_budget,      // setmaxnreg beyond what the CTA has
  deadlock,             //
  unknown_instruction,  // not modelled, or not on this chip
};
const char* name(Hazard hazard);

struct Finding {
  Hazard hazard = Hazard::deadlock;
  std::string kernel;
  Place place;          // where it was detected
  Place other;          // the other access of a race, if there is one
  std::string who;      // "thread 5 (warp 0, lane 5) of CTA 3", with its role
  std::string address;  // "shared 0x1400, 16 bytes"
  std::string text;     // what happened and what was missing
  std::int64_t times = 1;
};
std::string describe(const Finding& finding);  // several lines

class Report {
 public:
  void add(Finding finding);
  bool clean() const { return findings_.empty(); }
  const std::vector<Finding>& findings() const { return findings_; }
  // Whether the report accepts no more findings. The limit stops a kernel that fails everywhere.
  bool full() const;
  std::string text() const;

 private:
  std::vector<Finding> findings_;
};

}  // namespace octavo::emulator
