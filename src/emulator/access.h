// Memory accesses of one thread, checked: what the ld and st instructions are made of.
#pragma once

#include <cstdint>

#include "emulator/machine.h"

namespace octavo::emulator {

// The offset of `bytes` shared bytes at an address, aligned to `alignment`; nothing, and a finding,
// where they are not all inside.
std::optional<std::uint32_t> shared_offset(Thread& thread, Place place, std::uint32_t address,
                                           std::uint32_t bytes, std::uint32_t alignment);

// The same for an address that may lie in another CTA of the cluster (map_to_cta): there, the CTA
// must be known to have started, and must not have ended.
struct SharedAt {
  Cta* cta = nullptr;
  std::uint32_t offset = 0;
};
std::optional<SharedAt> locate(Thread& thread, Place place, std::uint32_t address,
                               std::uint32_t bytes, std::uint32_t alignment);
// The bits of an address above this one name a CTA of the cluster, plus one.
inline constexpr std::uint32_t kCtaShift = 24;

// Remembers an access to another CTA's shared memory: that CTA must not end before it.
void note_remote(Thread& thread, Cta& cta, const Access& access);

// What cannot be read comes as zeros, what cannot be written is dropped; both are findings.
void load_shared(Place place, std::uint32_t address, void* to, std::uint32_t bytes);
void store_shared(Place place, std::uint32_t address, const void* from, std::uint32_t bytes);
void load_global(Place place, const void* from, void* to, std::uint32_t bytes);
void store_global(Place place, void* to, const void* from, std::uint32_t bytes);
// Whether bytes of global memory may be accessed so; a finding where not.
bool global_allowed(Place place, const void* data, std::uint32_t bytes, std::uint32_t alignment,
                    GlobalMemory::Use use);

}  // namespace octavo::emulator
