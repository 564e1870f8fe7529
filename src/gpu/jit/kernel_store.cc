// SPDX-License-Identifier: Apache-2.0
// Finds kernels in memory, in the library, on disk, or compiles them.
#include "gpu/jit/kernel_store.h"

#include <fmt/format.h>

#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/nvrtc.h"
#include "numeric/fork_safe.h"

namespace octavo {

std::string_view name(KernelOrigin origin) {
  switch (origin) {
    case KernelOrigin::embedded:
      return "embedded";
    case KernelOrigin::disk:
      return "disk";
    case KernelOrigin::compiled:
      break;
  }
  return "compiled";
}

KernelStore::KernelStore() {
  parts_.compiler_version = nvrtc_version;
  parts_.compile = [](const KernelSource& source) { return compile(source); };
}

Result<std::shared_ptr<const LoadedKernel>> KernelStore::make(const KernelSource& source) const {
  auto loaded = std::make_shared<LoadedKernel>();
  if (Result<CompiledKernel> shipped = parts_.archive->load(cache_key(source, "")); shipped.ok()) {
    loaded->kernel = std::move(*shipped);
    loaded->origin = KernelOrigin::embedded;
  } else if (const Result<std::string> version = parts_.compiler_version(); !version.ok()) {
    Result<CompiledKernel> cached = load_of_any_compiler(parts_.cache, source);
    if (!cached.ok()) return version.status();
    loaded->kernel = std::move(*cached);
    loaded->origin = KernelOrigin::disk;
  } else {
    Result<Cached> cached = get_or_compile(parts_.cache, cache_key(source, *version),
                                           [&] { return parts_.compile(source); });
    if (!cached.ok()) return cached.status();
    loaded->kernel = std::move(cached->kernel);
    loaded->origin = cached->from_disk ? KernelOrigin::disk : KernelOrigin::compiled;
    loaded->note = std::move(cached->note);
  }
  if (!source.ptx) {
    Result<CubinInfo> info = read_cubin(loaded->kernel.image);
    if (!info.ok()) return info.status();
    loaded->info = std::move(*info);
  }
  return std::shared_ptr<const LoadedKernel>(std::move(loaded));
}

Result<std::shared_ptr<const LoadedKernel>> KernelStore::get(const KernelSource& source,
                                                             const CubinPolicy& policy) {
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Slot>& place =
        slots_[fmt::format("{} {} {} {} {}", source.include, source.arch, source.ptx,
                           source.name_expression, source_overlay_digest())];
    if (place == nullptr) place = std::make_shared<Slot>();
    slot = place;
  }
  // Threads that need the same kernel wait for it; others continue.
  const std::lock_guard lock(slot->mutex);
  if (slot->kernel == nullptr) {
    Result<std::shared_ptr<const LoadedKernel>> made = make(source);
    if (!made.ok()) return made;
    slot->kernel = std::move(*made);
  }
  if (!source.ptx) {
    const Status status =
        check_cubin(slot->kernel->info, slot->kernel->kernel.lowered_name, policy);
    if (!status.ok()) return status;
  }
  return slot->kernel;
}

KernelStore& kernel_store() {
  static constinit PerProcess<KernelStore> store;
  return store.get();
}

}  // namespace octavo
