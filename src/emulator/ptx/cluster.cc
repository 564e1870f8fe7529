// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/cluster.cuh and fence.cuh.
#include "device/ptx/cluster.cuh"

#include <cstring>

#include "device/ptx/fence.cuh"
#include "emulator/memory/access.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

void arrive(const char* name, bool release, Site site) {
  Thread& t = self();
  const Place place{name, site};
  if (t.machine->mutated(place)) return;
  meet(place, t, [&](Warp& warp, const auto&) { arrive_at_cluster(warp, release, place); });
}

void declare(Thread& t, Fences& f) {
  if (f.actor == kNobody) f.actor = t.cluster().new_actor(Acts::fence, &t);
  f.until = t.known.now();
  t.known.learn(f.actor, f.until);
  t.known.advance();
}

void store_async(u32 remote, const u32* x, u32 words, u32 remote_bar, Site site) {
  Thread& t = self();
  const Place place{"st.async", site};
  const u32 bytes = words * 4;
  if (t.machine->launch().cluster == 1)
    t.machine->stop(Hazard::unknown_instruction, place,
                    "st.async in a launch without clusters is an illegal instruction");
  const auto to = locate(t, place, remote, bytes, bytes);
  if (!to) return;
  const MbarrierAt bar = mbarrier_at(t, place, remote_bar, Reach::far);
  const Access access{bar.barrier->actor, bar.barrier->phase + 1, place};
  to->cta->shared.write({&t, access, Proxy::generic}, to->offset, bytes);
  note_remote(t, *to->cta, access);
  std::array<u32, 4> values{};
  std::memcpy(values.data(), x, bytes);
  ++bar.barrier->copies;
  bar.barrier->last_copy = place;
  const u32 phase = bar.barrier->phase;
  t.cluster().async.start({[&t, to = *to, bar, values, bytes, phase, place] {
                             std::memcpy(to.cta->shared.at(to.offset), values.data(), bytes);
                             if (bar.barrier->phase == phase) --bar.barrier->copies;
                             mbarrier_complete(t, bar, bytes, place);
                           },
                           &t, 0});
}

void load_remote(const char* name, u32 remote, void* x, u32 bytes, Site site) {
  Thread& t = self();
  const Place place{name, site};
  std::memset(x, 0, bytes);
  const auto from = locate(t, place, remote, bytes, bytes);
  if (!from) return;
  from->cta->shared.read(t.by(place), from->offset, bytes);
  note_remote(t, *from->cta, t.by(place).access);
  std::memcpy(x, from->cta->shared.at(from->offset), bytes);
}

}  // namespace

u32 cluster_cta_rank() { return static_cast<u32>(self().cta->rank); }
u32 cluster_cta_count() { return static_cast<u32>(self().machine->launch().cluster); }

void cluster_arrive(Site site) { arrive("barrier.cluster.arrive.release", true, site); }
void cluster_arrive_relaxed(Site site) { arrive("barrier.cluster.arrive.relaxed", false, site); }
void cluster_wait(Site site) {
  Thread& t = self();
  const Place place{"barrier.cluster.wait", site};
  if (t.machine->mutated(place)) {
    t.cluster_turn.waited = t.cluster_turn.arrived;
    return;
  }
  meet(place, t, [](Warp&, const auto&) {});
  wait_for_cluster(place);
}

u32 map_to_cta(u32 address, u32 cta) {
  return (cta + 1) << kCtaShift | (address & ((1u << kCtaShift) - 1));
}

void st_async_b32(u32 remote, u32 x, u32 remote_bar, Site site) {
  store_async(remote, &x, 1, remote_bar, site);
}
void st_async_b64(u32 remote, const u32 (&x)[2], u32 remote_bar, Site site) {
  store_async(remote, x, 2, remote_bar, site);
}
void st_async_b128(u32 remote, const u32 (&x)[4], u32 remote_bar, Site site) {
  store_async(remote, x, 4, remote_bar, site);
}
float load_remote_f32(u32 remote, Site site) {
  float x;
  load_remote("ld.shared::cluster.f32", remote, &x, 4, site);
  return x;
}
void load_remote_b128(u32 remote, u32 (&x)[4], Site site) {
  load_remote("ld.shared::cluster.v4.b32", remote, x, 16, site);
}

void fence_proxy_async(Site site) {
  Thread& t = self();
  if (t.machine->mutated({"fence.proxy.async.shared::cta", site})) return;
  declare(t, t.proxy_fences);
}
void fence_proxy_async_all(Site site) {
  Thread& t = self();
  if (t.machine->mutated({"fence.proxy.async", site})) return;
  declare(t, t.proxy_fences);
  declare(t, t.global_fences);
  t.machine->accesses().fence(t, t.global_fences.actor);
}
void fence_mbarrier_init(Site site) {
  Thread& t = self();
  if (t.machine->mutated({"fence.mbarrier_init", site})) return;
  declare(t, t.init_fences);
}

}  // namespace octavo::ptx
