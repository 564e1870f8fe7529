// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/access.h"

#include <fmt/format.h>

#include <cstring>

namespace octavo::emulator {

namespace {

std::optional<std::uint32_t> offset_in(const SharedMemory& shared, Thread& thread, Place place,
                                       std::uint32_t address, std::uint32_t bytes,
                                       std::uint32_t alignment) {
  const auto where = [&] { return fmt::format("shared {:#x}, {} bytes", address, bytes); };
  if (address % alignment != 0) {
    thread.machine->find(Hazard::misaligned, place,
                         fmt::format("the address must be a multiple of {}", alignment), where(),
                         {}, &thread);
    return std::nullopt;
  }
  if (address < SharedMemory::kBase || address - SharedMemory::kBase > shared.bytes() ||
      bytes > shared.bytes() - (address - SharedMemory::kBase)) {
    thread.machine->find(
        Hazard::out_of_bounds, place,
        fmt::format("the CTA has {} bytes from {:#x} on", shared.bytes(), SharedMemory::kBase),
        where(), {}, &thread);
    return std::nullopt;
  }
  return address - SharedMemory::kBase;
}

}  // namespace

std::optional<std::uint32_t> shared_offset(Thread& thread, Place place, std::uint32_t address,
                                           std::uint32_t bytes, std::uint32_t alignment) {
  return offset_in(thread.cta->shared, thread, place, address, bytes, alignment);
}

std::optional<SharedAt> locate(Thread& thread, Place place, std::uint32_t address,
                               std::uint32_t bytes, std::uint32_t alignment) {
  const std::uint32_t rank = address >> kCtaShift;
  const auto& ctas = thread.cluster().ctas;
  if (rank > ctas.size()) {
    thread.machine->find(Hazard::out_of_bounds, place,
                         fmt::format("the cluster has {} CTAs", ctas.size()),
                         fmt::format("shared::cluster {:#x}", address), {}, &thread);
    return std::nullopt;
  }
  Cta& cta = rank == 0 ? *thread.cta : *ctas[rank - 1];
  if (&cta != thread.cta) {
    if (!thread.known.covers(cta.started, 1))
      thread.machine->find(
          Hazard::peer_gone, place,
          fmt::format("CTA {} need not have started: no barrier.cluster was waited "
                      "for",
                      cta.block),
          fmt::format("shared::cluster {:#x}", address), {}, &thread);
    if (cta.running == 0) {
      thread.machine->find(
          Hazard::peer_gone, place,
          fmt::format("CTA {} has ended, and its shared memory with it", cta.block),
          fmt::format("shared::cluster {:#x}", address), {}, &thread);
      return std::nullopt;
    }
  }
  const auto offset =
      offset_in(cta.shared, thread, place, address & ((1u << kCtaShift) - 1), bytes, alignment);
  if (!offset) return std::nullopt;
  return SharedAt{&cta, *offset};
}

void note_remote(Thread& thread, Cta& cta, const Access& access) {
  if (&cta != thread.cta) cta.remote[access.actor] = access;
}

void load_shared(Place place, std::uint32_t address, void* to, std::uint32_t bytes) {
  Thread& t = self();
  std::memset(to, 0, bytes);
  const auto offset = shared_offset(t, place, address, bytes, bytes);
  if (!offset) return;
  t.machine->measures().access(t.warp->measured_as, t.lane, place, true, address, bytes);
  t.cta->shared.read(t.by(place), *offset, bytes);
  std::memcpy(to, t.cta->shared.at(*offset), bytes);
}

void store_shared(Place place, std::uint32_t address, const void* from, std::uint32_t bytes) {
  Thread& t = self();
  const auto offset = shared_offset(t, place, address, bytes, bytes);
  if (!offset) return;
  t.machine->measures().access(t.warp->measured_as, t.lane, place, true, address, bytes);
  t.cta->shared.write(t.by(place), *offset, bytes);
  std::memcpy(t.cta->shared.at(*offset), from, bytes);
}

bool global_allowed(Place place, const void* data, std::uint32_t bytes, std::uint32_t alignment,
                    GlobalMemory::Use use) {
  Thread& t = self();
  Machine& machine = *t.machine;
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    machine.find(Hazard::misaligned, place,
                 fmt::format("the address must be a multiple of {}", alignment),
                 machine.global().describe(data));
    return false;
  }
  if (machine.launch().programmatic && !t.known.covers(t.cluster().earlier_grids, 1))
    machine.find(
        Hazard::missing_grid_wait, place,
        "the grid this launch depends on may still run: no griddepcontrol.wait before this",
        machine.global().describe(data));
  const std::string refused = machine.global().refuse(data, bytes, use);
  if (!refused.empty()) {
    machine.find(Hazard::out_of_bounds, place, refused, fmt::format("global, {} bytes", bytes));
    return false;
  }
  return true;
}

void load_global(Place place, const void* from, void* to, std::uint32_t bytes, GlobalUse use) {
  std::memset(to, 0, bytes);
  if (!global_allowed(place, from, bytes, bytes, GlobalMemory::Use::read)) return;
  Thread& t = self();
  if (use == GlobalUse::non_coherent_read && t.machine->launch().programmatic)
    t.machine->find(
        Hazard::non_coherent_read, place,
        "an earlier grid may write these bytes after this launch has started: a load by "
        "ld.global.nc need not come after griddepcontrol.wait",
        fmt::format("global, {}", t.machine->global().describe(from)));
  t.machine->accesses().note(t.by(place), use, from, bytes);
  t.machine->measures().access(t.warp->measured_as, t.lane, place, false,
                               reinterpret_cast<std::uintptr_t>(from), bytes);
  std::memcpy(to, from, bytes);
}

void store_global(Place place, void* to, const void* from, std::uint32_t bytes) {
  if (!global_allowed(place, to, bytes, bytes, GlobalMemory::Use::write)) return;
  Thread& t = self();
  t.machine->measures().access(t.warp->measured_as, t.lane, place, false,
                               reinterpret_cast<std::uintptr_t>(to), bytes);
  t.machine->accesses().note(t.by(place), GlobalUse::write, to, bytes);
  std::memcpy(to, from, bytes);
  t.machine->note_change(to, bytes);
}

}  // namespace octavo::emulator
