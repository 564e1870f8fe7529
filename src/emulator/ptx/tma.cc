// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/tma.cuh: tiled and plain bulk copies.
#include "device/ptx/tma.cuh"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "emulator/memory/access.h"
#include "emulator/memory/tensor_map.h"
#include "numeric/formats.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

struct Box {
  TensorMapFields map;
  i32 at[5] = {};
  u32 element = 1;  // bytes
  u32 bytes = 0;    // of the whole box
};

Box box_of(Thread& t, Place place, const TensorMap* map, const i32* at, u32 rank) {
  Box box;
  if (!decode(*map, box.map))
    t.machine->stop(Hazard::unknown_instruction, place,
                    "this tensor map was not made for the emulator");
  if (const char* why = refuse(box.map); why != nullptr)
    t.machine->stop(Hazard::misaligned, place, fmt::format("the tensor map is not valid: {}", why));
  if (box.map.rank != rank)
    t.machine->stop(Hazard::unknown_instruction, place,
                    fmt::format("a tensor map of rank {} with {} coordinates", box.map.rank, rank));
  box.element = map_type_bytes(box.map.type);
  box.bytes = box.element;
  for (u32 i = 0; i < rank; ++i) {
    box.at[i] = at[i];
    box.bytes *= box.map.box[i];
  }
  // An H200 reports an illegal instruction.
  if (static_cast<i64>(box.at[0]) * box.element % 16 != 0)
    t.machine->stop(Hazard::misaligned, place,
                    "rows of a box start at a multiple of 16 bytes of the tensor's");
  return box;
}

// visit(offset of 16 bytes in the tile, global address or null if outside, bytes inside): rows are
// whole chunks, and only the innermost dimension can end inside one.
template <class Visit>
void for_each_chunk(const Box& box, const Visit& visit) {
  const TensorMapFields& m = box.map;
  const u32 row_bytes = m.box[0] * box.element;
  const u32 rows = box.bytes / row_bytes;
  for (u32 row = 0; row < rows; ++row) {
    u32 rest = row;
    bool inside = true;
    const u8* from = static_cast<const u8*>(m.data);
    for (u32 i = 1; i < m.rank; ++i) {
      const i64 index = static_cast<i64>(box.at[i]) + rest % m.box[i];
      rest /= m.box[i];
      inside = inside && index >= 0 && index < m.shape[i];
      from += inside ? index * static_cast<i64>(m.stride_bytes[i - 1]) : 0;
    }
    for (u32 byte = 0; byte < row_bytes; byte += 16) {
      const i64 first = static_cast<i64>(box.at[0]) * box.element + byte;
      const i64 end = static_cast<i64>(m.shape[0]) * box.element;
      visit(row * row_bytes + byte, inside ? from : nullptr, first, end);
    }
  }
}

// visit(address, bytes) for the parts of the box that are inside the tensor.
template <class Visit>
void for_each_part(const Box& box, const Visit& visit) {
  for_each_chunk(box, [&](u32, const u8* from, i64 first, i64 end) {
    const i64 low = first < 0 ? 0 : first, high = first + 16 < end ? first + 16 : end;
    if (from != nullptr && low < high) visit(from + low, static_cast<u32>(high - low));
  });
}

// Checks the bounds of the global addresses that the box covers.
void check_global(Place place, const Box& box, GlobalMemory::Use use) {
  for_each_part(box, [&](const u8* at, u32 bytes) { global_allowed(place, at, bytes, 1, use); });
}

// Records that an asynchronous operation of the thread accesses these bytes of the box.
void note_global(const By& by, const Box& box, GlobalUse use) {
  for_each_part(box, [&](const u8* at, u32 bytes) {
    by.thread->machine->accesses().note(by, use, at, bytes);
  });
}

void fill_tile(const Box& box, u8* to, u32 address) {
  u8 fill[16] = {};
  if (box.map.nan_fill)
    for (u32 i = 0; i < 16; i += 2) fill[i] = 0xff, fill[i + 1] = 0x7f;
  for_each_chunk(box, [&](u32 offset, const u8* from, i64 first, i64 end) {
    u8* const chunk = to + (swizzled(address + offset, box.map.swizzle_bytes) - address);
    for (i64 i = 0; i < 16; ++i) {
      const i64 at = first + i;
      chunk[i] = from != nullptr && at >= 0 && at < end ? from[at] : fill[i];
    }
  });
}

// Bulk additions keep subnormal numbers, and every NaN is the GPU's. (red.global.add.f32 would
// flush them.)
float add_f32(float a, float b) {
  const float sum = a + b;
  return std::isnan(sum) ? std::bit_cast<float>(0x7fffffffu) : sum;
}

void add_values(MapType type, u8* to, const u8* x) {
  const auto add = [&]<class T>(T) {
    T a, b;
    std::memcpy(&a, to, sizeof a);
    std::memcpy(&b, x, sizeof b);
    if constexpr (std::is_same_v<T, float>)
      a = add_f32(a, b);
    else
      a = static_cast<T>(a + b);
    std::memcpy(to, &a, sizeof a);
  };
  u16 a, b;
  switch (type) {
    case MapType::f32:
      return add(float{});
    case MapType::u32:
      return add(u32{});
    case MapType::u16:
      return add(u16{});
    case MapType::u8:
      return add(u8{});
    case MapType::f16:
    case MapType::bf16:
      std::memcpy(&a, to, 2);
      std::memcpy(&b, x, 2);
      a = type == MapType::f16 ? f16_from_f32(f32_from_f16(a) + f32_from_f16(b))
                               : bf16_from_f32(f32_from_bf16(a) + f32_from_bf16(b));
      std::memcpy(to, &a, 2);
  }
}

void empty_tile(const Box& box, const u8* tile, u32 address, bool reduce) {
  for_each_chunk(box, [&](u32 offset, const u8* row, i64 first, i64 end) {
    const u8* const chunk = tile + (swizzled(address + offset, box.map.swizzle_bytes) - address);
    for (u32 i = 0; i < 16; i += box.element) {
      const i64 at = first + i;
      if (row == nullptr || at < 0 || at >= end) continue;
      u8* const to = const_cast<u8*>(row) + at;
      if (reduce)
        add_values(box.map.type, to, chunk + i);
      else
        std::memcpy(to, chunk + i, box.element);
    }
  });
}

// A tile occupies whole 128-byte rows: swizzling moves bytes only inside them.
constexpr u32 kTileAlignment = 128;

// A copy into the shared memory of `at.cta` that completes on an mbarrier there: its writes are
// operations of the mbarrier's current phase.
template <class Perform>
void start_copy(Thread& t, Place place, const SharedAt& to, const MbarrierAt& bar, u32 bytes,
                const Perform& perform) {
  const Access access{bar.barrier->actor, bar.barrier->phase + 1, place};
  to.cta->shared.write({&t, access, Proxy::async}, to.offset, bytes);
  note_remote(t, *to.cta, access);
  ++bar.barrier->copies;
  bar.barrier->last_copy = place;
  const u32 phase = bar.barrier->phase;
  t.cluster().async.start({[=, &t] {
                             perform();
                             if (bar.barrier->phase == phase) --bar.barrier->copies;
                             mbarrier_complete(t, bar, bytes, place);
                           },
                           &t, 0});
}

void load(const char* name, u32 to, const TensorMap* map, u32 bar, const i32* at, u32 rank,
          u32 ctas, Site site) {
  Thread& t = self();
  const Place place{name, site};
  const Box box = box_of(t, place, map, at, rank);
  check_global(place, box, GlobalMemory::Use::read);
  t.machine->measures().count("cp.async.bulk.tensor");
  for (std::size_t rank_of = 0; rank_of < t.cluster().ctas.size(); ++rank_of) {
    Cta& cta = *t.cluster().ctas[rank_of];
    if (ctas == 0 ? &cta != t.cta : (ctas >> rank_of & 1) == 0) continue;
    const u32 window = &cta == t.cta ? 0 : static_cast<u32>(rank_of + 1) << kCtaShift;
    const auto tile = locate(t, place, window | to, box.bytes, kTileAlignment);
    if (!tile) continue;
    const MbarrierAt barrier = mbarrier_at(t, place, window | bar, Reach::far);
    const u32 address = tile->offset + SharedMemory::kBase;
    note_global({&t, {barrier.barrier->actor, barrier.barrier->phase + 1, place}, Proxy::async},
                box, GlobalUse::read);
    start_copy(t, place, *tile, barrier, box.bytes, [tile = *tile, box, address] {
      fill_tile(box, tile.cta->shared.at(tile.offset), address);
    });
  }
}

// The access of the thread's open bulk group to global memory.
By written_by_group(Thread& t, Place place) {
  if (t.bulk.writer == kNobody) t.bulk.writer = t.cluster().new_actor(Acts::bulk_write, &t);
  return {&t, {t.bulk.writer, t.bulk.open, place}, Proxy::async};
}

// The reads of a bulk store belong to the open group of its thread. `perform` writes global memory
// from a copy of the source.
template <class Perform>
void start_store(Thread& t, Place place, u32 offset, u32 bytes, const Perform& perform) {
  if (t.bulk.actor == kNobody) t.bulk.actor = t.cluster().new_actor(Acts::bulk, &t);
  t.cta->shared.read({&t, {t.bulk.actor, t.bulk.open, place}, Proxy::async}, offset, bytes);
  t.bulk.used = t.bulk.open;
  t.bulk.last = place;
  const auto source = std::make_shared<std::vector<u8>>(bytes);
  t.cluster().async.start({[=] { perform(source->data()); }, &t, t.bulk.open,
                           [&t, source, offset, bytes] {
                             std::memcpy(source->data(), t.cta->shared.at(offset), bytes);
                           }});
}

void store(const char* name, const TensorMap* map, u32 from, const i32* at, u32 rank, bool reduce,
           Site site) {
  Thread& t = self();
  const Place place{name, site};
  const Box box = box_of(t, place, map, at, rank);
  check_global(place, box, GlobalMemory::Use::write);
  t.machine->measures().count("cp.async.bulk.tensor");
  const auto offset = shared_offset(t, place, from, box.bytes, kTileAlignment);
  if (!offset) return;
  note_global(written_by_group(t, place), box, reduce ? GlobalUse::update : GlobalUse::write);
  start_store(
      t, place, *offset, box.bytes, [machine = t.machine, box, from, reduce](const u8* source) {
        empty_tile(box, source, from, reduce);
        for_each_part(box, [&](const u8* to, u32 bytes) { machine->note_change(to, bytes); });
      });
}

// cp.async.bulk and cp.reduce.async.bulk from shared to global memory; write(to, source) moves the
// bytes.
template <class Write>
void store_bulk(Place place, void* to, u32 from, u32 bytes, GlobalUse use, const Write& write) {
  Thread& t = self();
  if (bytes % 16 != 0)
    t.machine->stop(Hazard::misaligned, place,
                    fmt::format("{} bytes: not a multiple of 16", bytes));
  const auto offset = shared_offset(t, place, from, bytes, 16);
  if (!offset || !global_allowed(place, to, bytes, 16, GlobalMemory::Use::write)) return;
  t.machine->accesses().note(written_by_group(t, place), use, to, bytes);
  start_store(t, place, *offset, bytes, [machine = t.machine, to, bytes, write](const u8* source) {
    write(static_cast<u8*>(to), source);
    machine->note_change(to, bytes);
  });
}

void wait_for_groups(const char* name, u32 pending, bool only_read, Site site) {
  Thread& t = self();
  if (t.machine->mutated({name, site})) return;
  const u32 committed = t.bulk.open - 1;
  const u32 last = committed > pending ? committed - pending : 0;
  t.bulk.read = last > t.bulk.read ? last : t.bulk.read;
  if (t.bulk.actor == kNobody) return;
  t.known.learn(t.bulk.actor, last);
  if (only_read) {
    t.cluster().async.read_groups(t, last);
    return;
  }
  t.cluster().async.complete_groups(t, last);
  t.known.learn(t.bulk.writer, last);
}

}  // namespace

void prefetch_tensor_map(const TensorMap* /*map*/, Site /*site*/) {}
u64 l2_evict_first() { return 1; }

#define OCTAVO_TMA(dim)                                                                         \
  void tma_load(u32 to, const TensorMap* map, u32 bar, const i32(&at)[dim], Site site) {        \
    load("cp.async.bulk.tensor." #dim "d", to, map, bar, at, dim, 0, site);                     \
  }                                                                                             \
  void tma_load(u32 to, const TensorMap* map, u32 bar, const i32(&at)[dim], u64, Site site) {   \
    load("cp.async.bulk.tensor." #dim "d", to, map, bar, at, dim, 0, site);                     \
  }                                                                                             \
  void tma_load_multicast(u32 to, const TensorMap* map, u32 bar, const i32(&at)[dim], u16 ctas, \
                          Site site) {                                                          \
    load("cp.async.bulk.tensor." #dim "d.multicast", to, map, bar, at, dim, ctas, site);        \
  }                                                                                             \
  void tma_prefetch(const TensorMap*, const i32(&)[dim], Site) {}                               \
  void tma_store(const TensorMap* map, u32 from, const i32(&at)[dim], Site site) {              \
    store("cp.async.bulk.tensor." #dim "d.global", map, from, at, dim, false, site);            \
  }                                                                                             \
  void tma_reduce_add(const TensorMap* map, u32 from, const i32(&at)[dim], Site site) {         \
    store("cp.reduce.async.bulk.tensor." #dim "d", map, from, at, dim, true, site);             \
  }
OCTAVO_TMA(1)
OCTAVO_TMA(2)
OCTAVO_TMA(3)
OCTAVO_TMA(4)
OCTAVO_TMA(5)
#undef OCTAVO_TMA

void bulk_load(u32 to, const void* from, u32 bytes, u32 bar, Site site) {
  Thread& t = self();
  const Place place{"cp.async.bulk.shared", site};
  const auto tile = locate(t, place, to, bytes, 16);
  if (bytes % 16 != 0)
    t.machine->stop(Hazard::misaligned, place,
                    fmt::format("{} bytes: not a multiple of 16", bytes));
  if (!tile || !global_allowed(place, from, bytes, 16, GlobalMemory::Use::read)) return;
  const MbarrierAt barrier = mbarrier_at(t, place, bar, Reach::far);
  t.machine->accesses().note(
      {&t, {barrier.barrier->actor, barrier.barrier->phase + 1, place}, Proxy::async},
      GlobalUse::read, from, bytes);
  start_copy(t, place, *tile, barrier, bytes, [tile = *tile, from, bytes] {
    std::memcpy(tile.cta->shared.at(tile.offset), from, bytes);
  });
}

void bulk_store(void* to, u32 from, u32 bytes, Site site) {
  store_bulk({"cp.async.bulk.global", site}, to, from, bytes, GlobalUse::write,
             [bytes](u8* global, const u8* source) { std::memcpy(global, source, bytes); });
}

void bulk_reduce_add_f32(void* to, u32 from, u32 bytes, Site site) {
  store_bulk({"cp.reduce.async.bulk.global.add.f32", site}, to, from, bytes, GlobalUse::update,
             [bytes](u8* global, const u8* source) {
               for (u32 i = 0; i < bytes; i += 4) add_values(MapType::f32, global + i, source + i);
             });
}

void bulk_send(u32 remote_to, u32 from, u32 bytes, u32 remote_bar, Site site) {
  Thread& t = self();
  const Place place{"cp.async.bulk.shared::cluster", site};
  const auto source = shared_offset(t, place, from, bytes, 16);
  const auto to = locate(t, place, remote_to, bytes, 16);
  if (!source || !to) return;
  const MbarrierAt bar = mbarrier_at(t, place, remote_bar, Reach::far);
  // The source is read until the phase of the receiver's mbarrier has ended.
  t.cta->shared.read({&t, {bar.barrier->actor, bar.barrier->phase + 1, place}, Proxy::async},
                     *source, bytes);
  start_copy(t, place, *to, bar, bytes, [&t, to = *to, source = *source, bytes] {
    std::memcpy(to.cta->shared.at(to.offset), t.cta->shared.at(source), bytes);
  });
}

void bulk_commit(Site site) {
  Thread& t = self();
  if (!t.machine->mutated({"cp.async.bulk.commit_group", site})) ++t.bulk.open;
}
template <int kPending>
void bulk_wait(Site site) {
  wait_for_groups("cp.async.bulk.wait_group", kPending, false, site);
}
template <int kPending>
void bulk_wait_read(Site site) {
  wait_for_groups("cp.async.bulk.wait_group.read", kPending, true, site);
}
#define OCTAVO_WAIT(n)              \
  template void bulk_wait<n>(Site); \
  template void bulk_wait_read<n>(Site);
OCTAVO_WAIT(0)
OCTAVO_WAIT(1)
OCTAVO_WAIT(2)
OCTAVO_WAIT(3)
OCTAVO_WAIT(4)
#undef OCTAVO_WAIT

}  // namespace octavo::ptx
