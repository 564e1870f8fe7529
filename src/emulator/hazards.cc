// SPDX-License-Identifier: Apache-2.0
#include "emulator/hazards.h"

#include <fmt/format.h>

#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

std::string subject(const Cluster& cluster, const Access& access) {
  const ActorInfo& actor = cluster.actors[access.actor];
  switch (actor.acts) {
    case Acts::thread:
      return describe(*actor.thread);
    case Acts::cp_async:
      return fmt::format("a cp.async of {}", describe(*actor.thread));
    case Acts::bulk:
      return fmt::format("a bulk store of {} (group {})", describe(*actor.thread), access.number);
    case Acts::mbarrier:
      return fmt::format("a copy that completes on mbarrier {:#x} (phase {})", actor.address,
                         access.number - 1);
    case Acts::wgmma:
      return fmt::format("a wgmma of warp {} of CTA {} (group {})", actor.thread->warp->index,
                         actor.thread->cta->block, access.number);
    case Acts::bulk_write:
    case Acts::fence:
    case Acts::grid:
    case Acts::cta:
      break;
  }
  return "nobody";
}

// Names the missing synchronisation: what would have ordered `earlier` before the thread's access.
std::string missing(const Access& earlier, const Thread& later) {
  const ActorInfo& actor = later.cluster().actors[earlier.actor];
  const Thread& owner = *actor.thread;
  if (actor.acts == Acts::cp_async && !owner.known.covers(earlier.actor, earlier.number))
    return &owner == &later ? "cp.async.wait_group of this thread does not reach it"
                            : "no cp.async.wait_group of its thread has reached it";
  const bool finished = owner.known.covers(earlier.actor, earlier.number);
  if (actor.acts == Acts::bulk && !finished)
    return "no cp.async.bulk.wait_group of its thread has reached it";
  if (actor.acts == Acts::wgmma && !finished)
    return "no wgmma.wait_group of its warp has reached it";
  if (actor.acts == Acts::mbarrier) return "no wait for that phase stands between";
  return owner.warp == later.warp ? "no barrier stands between two lanes of this warp"
                                  : "no barrier stands between the two";
}

}  // namespace

void report_conflict(Machine& machine, const By& later, const Access& earlier,
                     const Conflict& conflict, std::uint32_t offset, std::uint32_t bytes) {
  const std::string address =
      fmt::format("shared {:#x}, {} bytes from there", offset + SharedMemory::kBase, bytes);
  if (conflict.kind == Conflict::Kind::uninitialised) {
    machine.find(Hazard::uninitialised_read, later.access.place, "bytes that nothing wrote",
                 address, {}, later.thread);
    return;
  }
  const Cluster& cluster = later.thread->cluster();
  const bool copy = cluster.actors[earlier.actor].acts != Acts::thread;
  const std::string who = subject(cluster, earlier);
  const std::string why = missing(earlier, *later.thread);
  const auto find = [&](Hazard hazard, const std::string& text) {
    machine.find(hazard, later.access.place, text, address, earlier.place, later.thread);
  };
  switch (conflict.kind) {
    case Conflict::Kind::uninitialised:
      break;
    case Conflict::Kind::read_after_write:
      find(copy ? Hazard::copy_in_flight : Hazard::read_write_race,
           fmt::format("reads what {} may still write: {}", who, why));
      break;
    case Conflict::Kind::write_after_write:
      find(copy ? Hazard::copy_in_flight : Hazard::write_write_race,
           fmt::format("writes what {} may still write: {}", who, why));
      break;
    case Conflict::Kind::write_after_read:
      find(copy ? Hazard::operand_in_flight : Hazard::read_write_race,
           fmt::format("writes what {} may still read: {}", who, why));
      break;
    case Conflict::Kind::no_proxy_fence:
      find(Hazard::missing_proxy_fence,
           fmt::format("the async proxy need not see what {} wrote: no fence.proxy.async by that "
                       "thread between its write and this",
                       who));
      break;
  }
}

}  // namespace octavo::emulator
