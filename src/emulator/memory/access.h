// SPDX-License-Identifier: Apache-2.0
// Checked memory accesses of one thread, which implement the ld and st instructions.
#pragma once

#include <cstdint>

#include "emulator/machine.h"

namespace octavo::emulator {

// The offset in shared memory of `bytes` bytes at an address. Reports a finding and returns nothing
// if they are not all inside, or not aligned to `alignment`.
std::optional<std::uint32_t> shared_offset(Thread& thread, Place place, std::uint32_t address,
                                           std::uint32_t bytes, std::uint32_t alignment);

// The same for an address that may be in another CTA of the cluster (map_to_cta). The thread must
// know that this CTA has started, and it must not have ended.
struct SharedAt {
  Cta* cta = nullptr;
  std::uint32_t offset = 0;
};
std::optional<SharedAt> locate(Thread& thread, Place place, std::uint32_t address,
                               std::uint32_t bytes, std::uint32_t alignment);
// The address bits above this one hold the rank of a CTA of the cluster, plus one.
inline constexpr std::uint32_t kCtaShift = 24;

// Records an access to another CTA's shared memory: that CTA must not end before it.
void note_remote(Thread& thread, Cta& cta, const Access& access);

// An invalid read returns zeros and an invalid write is dropped; both are findings.
void load_shared(Place place, std::uint32_t address, void* to, std::uint32_t bytes);
void store_shared(Place place, std::uint32_t address, const void* from, std::uint32_t bytes);
void load_global(Place place, const void* from, void* to, std::uint32_t bytes,
                 GlobalUse use = GlobalUse::read);
void store_global(Place place, void* to, const void* from, std::uint32_t bytes);
// Whether these bytes of global memory may be accessed this way; if not, reports a finding.
bool global_allowed(Place place, const void* data, std::uint32_t bytes, std::uint32_t alignment,
                    GlobalMemory::Use use);

}  // namespace octavo::emulator
