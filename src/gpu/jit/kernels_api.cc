// SPDX-License-Identifier: Apache-2.0
// The public view of kernels (octavo/kernels.hpp).
#include <fmt/format.h>

#include "base/error.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_cache.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/kernel_store.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/shipped.h"
#include "octavo/kernels.hpp"

namespace octavo {
namespace {

KernelCode code_of(const CubinKernel& kernel, bool debug) {
  const InstructionCounts& n = kernel.instructions;
  KernelCode code;
  code.registers = kernel.registers;
  code.static_smem_bytes = kernel.static_smem_bytes;
  code.local_bytes = kernel.stack_bytes;
  code.local_instructions = n.local_loads + n.local_stores;
  code.instructions = n.total;
  code.mma_f16 = n.hmma + n.wgmma_f16;
  code.mma_fp8 = n.qmma + n.wgmma_fp8;
  code.mma_int8 = n.imma + n.wgmma_int8;
  code.ldmatrix = n.ldmatrix;
  code.exp2 = n.exp2;
  code.shared_stores = n.shared_stores;
  code.debug = debug;
  return code;
}

KernelInfo described(std::string_view kernel, const auto& config, bool ptx) {
  KernelInfo info;
  info.kernel = kernel;
  info.config = to_text(config);
  info.brief = brief_text(config);
  info.arch = kernel_source(config).arch;
  info.ptx = ptx;
  return info;
}
KernelInfo describe(const Sm80ForwardConfig& config, bool ptx) {
  KernelInfo info = described("sm80_forward", config, ptx);
  info.threads = sm80::threads(config);
  info.dynamic_smem_bytes = sm80::smem_bytes(config);
  return info;
}
KernelInfo describe(const Sm90ForwardConfig& config) {
  KernelInfo info = described("sm90_forward", config, false);
  info.threads = sm90::threads(config);
  info.dynamic_smem_bytes = sm90::smem_bytes(config);
  return info;
}

void describe_image(const Result<CompiledKernel>& kernel, KernelInfo& info) {
  info.status = kernel.status();
  if (!kernel.ok()) return;
  info.image_bytes = kernel->image.size();
  info.compile_ms = kernel->compile_ms;
  info.compiler = kernel->compiler;
  info.options = kernel->options;
  info.symbol = kernel->lowered_name;
  info.sha256 = kernel->sha256;
  if (kernel->ptx) return;
  const Result<CubinInfo> cubin = read_cubin(kernel->image);
  info.status = cubin.ok() ? check_cubin(*cubin, kernel->lowered_name, {}) : cubin.status();
  if (!cubin.ok()) return;
  const CubinKernel* const found = cubin->find(kernel->lowered_name);
  if (found != nullptr) info.code = code_of(*found, cubin->debug);
}

// The configuration in "kernel<ConfigOf<Config{...}>>".
std::string brief_of_name(std::string_view name_expression) {
  constexpr std::string_view kBefore = "ConfigOf<";
  const std::size_t before = name_expression.find(kBefore);
  const std::size_t end = name_expression.rfind('}');
  if (before == std::string_view::npos || end == std::string_view::npos || end < before) return {};
  const std::size_t start = before + kBefore.size();
  const std::string_view text = name_expression.substr(start, end + 1 - start);
  const auto brief = [](const auto& config) {
    return config.ok() ? brief_text(*config) : std::string();
  };
  return names_sm90_forward(text) ? brief(parse_sm90_forward(text))
                                  : brief(parse_sm80_forward(text));
}

KernelInfo with_shipped_image(KernelInfo info, const KernelSource& source) {
  describe_image(embedded_kernels().load(cache_key(source, "")), info);
  return info;
}

struct Asked {
  KernelInfo info;
  KernelSource source;
};
template <class Config>
Result<Asked> asked(const Result<Config>& config, const auto& describe_it) {
  if (!config.ok()) return config.status();
  const KernelSource source = kernel_source(*config);
  OCTAVO_RETURN_IF_ERROR(feasible(*config, source.arch));
  return Asked{describe_it(*config), source};
}
Result<Asked> asked(std::string_view text) {
  if (names_sm90_forward(text))
    return asked(parse_sm90_forward(text), [](const auto& c) { return describe(c); });
  return asked(parse_sm80_forward(text), [](const auto& c) { return describe(c, false); });
}

}  // namespace

std::vector<KernelInfo> shipped_kernel_list() {
  std::vector<KernelInfo> list;
  for (const int arch : kShippedArchs) {
    for (const Sm80ForwardConfig& config : shipped_configs(arch)) {
      list.push_back(with_shipped_image(describe(config, false), kernel_source(config)));
    }
  }
  for (const Sm90ForwardConfig& config : shipped_sm90_configs()) {
    list.push_back(with_shipped_image(describe(config), kernel_source(config)));
  }
  for (const int arch : kShippedPtxArchs) {
    for (const Sm80ForwardConfig& config : shipped_configs(arch)) {
      list.push_back(with_shipped_image(describe(config, true), kernel_source(config, true)));
    }
  }
  return list;
}

bool has_shipped_kernels() { return embedded_kernels().size() > 0; }

std::string kernel_cache_directory() { return CubinCache::default_root(); }

Result<std::vector<CachedKernelInfo>> cached_kernels() {
  return without_exceptions([&]() -> Result<std::vector<CachedKernelInfo>> {
    const Result<std::vector<CubinCache::Entry>> entries =
        CubinCache(CubinCache::default_root()).list();
    if (!entries.ok()) return entries.status();
    std::vector<CachedKernelInfo> list;
    for (const CubinCache::Entry& entry : *entries) {
      CachedKernelInfo info;
      info.key = entry.key;
      info.name_expression = entry.kernel.name_expression;
      info.brief = brief_of_name(info.name_expression);
      info.arch = entry.kernel.arch;
      info.ptx = entry.kernel.ptx;
      info.bytes = entry.bytes;
      info.modified = entry.modified;
      info.compile_ms = entry.kernel.compile_ms;
      info.compiler = entry.kernel.compiler;
      info.status = entry.status;
      list.push_back(std::move(info));
    }
    return list;
  });
}

Result<int> remove_cached_kernels(std::string_view prefix) {
  return without_exceptions(
      [&]() -> Result<int> { return CubinCache(CubinCache::default_root()).remove(prefix); });
}

Result<KernelInfo> compile_kernel(std::string_view config_text) {
  return without_exceptions([&]() -> Result<KernelInfo> {
    Result<Asked> kernel_asked = asked(config_text);
    if (!kernel_asked.ok()) return kernel_asked.status();
    const auto loaded =
        kernel_store().get(kernel_asked->source, {.allow_spills = true, .allow_debug = true});
    if (!loaded.ok()) return loaded.status();
    describe_image((*loaded)->kernel, kernel_asked->info);
    return std::move(kernel_asked->info);
  });
}

Result<KernelExplanation> explain_kernel(std::string_view config_text) {
  return without_exceptions([&]() -> Result<KernelExplanation> {
    const Result<Asked> kernel_asked = asked(config_text);
    if (!kernel_asked.ok()) return kernel_asked.status();
    const KernelSource& source = kernel_asked->source;
    KernelExplanation out;
    out.info = kernel_asked->info;
    out.name_expression = source.name_expression;
    out.options = fmt::format("{}", fmt::join(nvrtc_options(source.arch, source.ptx), " "));
    out.sources_sha256 = sources_digest(source.include);
    const Result<std::string> version = nvrtc_version();
    out.compiler = version.ok() ? *version : version.status().message();
    const CubinCache cache(CubinCache::default_root());
    if (version.ok()) {
      out.key = cache_key(source, *version);
      if (!cache.root().empty()) out.directory = cache.root() + "/" + out.key;
    }
    Result<CompiledKernel> kernel = embedded_kernels().load(cache_key(source, ""));
    if (kernel.ok()) {
      out.where = KernelExplanation::Where::embedded;
    } else {
      kernel = version.ok() ? cache.load(out.key) : load_of_any_compiler(cache, source);
      if (kernel.ok()) out.where = KernelExplanation::Where::disk;
    }
    describe_image(kernel, out.info);
    return out;
  });
}

}  // namespace octavo
