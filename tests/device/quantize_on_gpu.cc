// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "device/quantize_run.h"
#include "gpu/forward/forward_params.h"
#include "gpu/quantize/launch_quantize.h"
#include "runtime/staging.h"

namespace octavo::test {
namespace {

Status quantize_on(const Gpu& gpu, Device device, const QuantizeGiven& given, QuantizeLeft& left) {
  const Result<Problem> run_problem = problem_of(given.arguments, given.options);
  if (!run_problem.ok()) return run_problem.status();
  const Result<StagedArguments> staged =
      StagedArguments::make(given.arguments, *run_problem, device);
  if (!staged.ok()) return staged.status();
  const Result<Resolved> resolved = resolve(*run_problem, &given.arguments, given.layout);
  if (!resolved.ok()) return resolved.status();
  const std::size_t bytes = resolved->workspace_bytes;
  std::byte* const host = aligned_workspace(left, bytes);
  const Result<Buffer> memory = Buffer::make(device, bytes);
  if (!memory.ok()) return memory.status();
  if (const Status sent = memory->upload(host, bytes); !sent.ok()) return sent;

  const auto substitute = [&](QuantizeConfig config, std::int64_t) {
    if (config.to == Element::e4m3) config.to = element_of(given.format);
    return config;
  };
  left.call = prepare_call(*resolved, staged->on_device(), memory->data(),
                           code_for(gpu.info.arch).arch, substitute);
  LoadedQuantizers quantizers(gpu);
  if (const Status ran = quantizers.launch(left.call, nullptr); !ran.ok()) return ran;
  if (const Status done = synchronize(device); !done.ok()) return done;
  if (const Status got = memory->download(host, bytes); !got.ok()) return got;

  // The same offsets on the host; tensors that were not quantized keep their own memory.
  const auto* const base = static_cast<const std::byte*>(memory->data());
  const auto on_host = [&](const void* made, const void* given_to_it) {
    const auto* const at = static_cast<const std::byte*>(made);
    return at >= base && at < base + bytes ? host + (at - base) : given_to_it;
  };
  Arguments& a = left.call.arguments;
  const Arguments& from = given.arguments;
  for (const auto& [t, g] : {std::pair{&a.q, &from.q}, {&a.k, &from.k}, {&a.v, &from.v}})
    t->data = on_host(t->data, g->data);
  for (const auto& [s, g] : {std::pair{&a.q_scales, &from.q_scales},
                             {&a.k_scales, &from.k_scales},
                             {&a.v_scales, &from.v_scales}})
    s->data = static_cast<const float*>(on_host(s->data, g->data));
  set_format(given, left);
  return {};
}

}  // namespace

QuantizeLeft quantize_on_gpu(const QuantizeGiven& given) {
  QuantizeLeft left;
  const Result<const Gpu*> gpu = open_gpu(0);
  const Status status =
      gpu.ok() ? quantize_on(**gpu, {Device::Kind::cuda, 0}, given, left) : gpu.status();
  EXPECT_TRUE(status.ok()) << status.message();
  return left;
}

}  // namespace octavo::test
