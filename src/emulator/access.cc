#include "emulator/access.h"

#include <fmt/format.h>

#include <cstring>

namespace octavo::emulator {

std::optional<std::uint32_t> shared_offset(Thread& thread, Place place, std::uint32_t address,
                                           std::uint32_t bytes, std::uint32_t alignment) {
  const SharedMemory& shared = thread.cta->shared;
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

void load_shared(Place place, std::uint32_t address, void* to, std::uint32_t bytes) {
  Thread& t = self();
  std::memset(to, 0, bytes);
  const auto offset = shared_offset(t, place, address, bytes, bytes);
  if (!offset) return;
  t.machine->measures().access(t.warp->index, t.lane, place, true, address, bytes);
  t.cta->shared.read(t.by(place), *offset, bytes);
  std::memcpy(to, t.cta->shared.at(*offset), bytes);
}

void store_shared(Place place, std::uint32_t address, const void* from, std::uint32_t bytes) {
  Thread& t = self();
  const auto offset = shared_offset(t, place, address, bytes, bytes);
  if (!offset) return;
  t.machine->measures().access(t.warp->index, t.lane, place, true, address, bytes);
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
  const std::string refused = machine.global().refuse(data, bytes, use);
  if (!refused.empty()) {
    machine.find(Hazard::out_of_bounds, place, refused, fmt::format("global, {} bytes", bytes));
    return false;
  }
  return true;
}

void load_global(Place place, const void* from, void* to, std::uint32_t bytes) {
  std::memset(to, 0, bytes);
  if (!global_allowed(place, from, bytes, bytes, GlobalMemory::Use::read)) return;
  Thread& t = self();
  t.machine->measures().access(t.warp->index, t.lane, place, false,
                               reinterpret_cast<std::uintptr_t>(from), bytes);
  std::memcpy(to, from, bytes);
}

void store_global(Place place, void* to, const void* from, std::uint32_t bytes) {
  if (!global_allowed(place, to, bytes, bytes, GlobalMemory::Use::write)) return;
  Thread& t = self();
  t.machine->measures().access(t.warp->index, t.lane, place, false,
                               reinterpret_cast<std::uintptr_t>(to), bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace octavo::emulator
