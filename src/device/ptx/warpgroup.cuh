// SPDX-License-Identifier: Apache-2.0
// Warp specialisation: register reallocation, electing one lane, barriers that some warps only
// arrive at, and programmatic dependent launch.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// setmaxnreg.inc.sync.aligned.u32 n;  executed by all warps of a warpgroup; waits until the
// registers are free. n is a multiple of 8 from 24 to 256, and a CTA never holds more registers
// than it was launched with.
template <int kRegisters>
OCTAVO_PTX void increase_registers(OCTAVO_SITE)
    OCTAVO_BODY({ asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); });
// setmaxnreg.dec.sync.aligned.u32 n;
template <int kRegisters>
OCTAVO_PTX void decrease_registers(OCTAVO_SITE)
    OCTAVO_BODY({ asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); });

// elect.sync _|p, 0xffffffff;  true in one lane of the warp, always the same one
OCTAVO_PTX bool elect_one(OCTAVO_SITE) OCTAVO_BODY({
  u32 elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
});
// bar.arrive id, count;  counts as one of the `count` threads of the named barrier, without waiting
OCTAVO_PTX void named_barrier_arrive(int id, int count OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
});
// bar.warp.sync 0xffffffff;
OCTAVO_PTX void warp_sync(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
});
// griddepcontrol.wait;  waits until the grids this launch depends on are complete and their writes
// are visible. No effect if the launch depends on none.
OCTAVO_PTX void wait_for_earlier_grids(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("griddepcontrol.wait;" ::: "memory");
});
// griddepcontrol.launch_dependents;  the next grid may start once every CTA has executed it or
// ended
OCTAVO_PTX void launch_dependent_grids(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
});

}  // namespace octavo::ptx
