#include <gtest/gtest.h>

#include "device/quantize_run.h"
#include "gpu/element_of.h"
#include "gpu/launch_quantize.h"
#include "runtime/staging.h"

namespace octavo::test {
namespace {

Status quantize_on(const Gpu& gpu, Device device, const QuantizeGiven& given, QuantizeLeft& left) {
  const Result<Problem> posed = problem_of(given.arguments, given.options);
  if (!posed.ok()) return posed.status();
  const Result<StagedArguments> staged = StagedArguments::make(given.arguments, *posed, device);
  if (!staged.ok()) return staged.status();
  const std::size_t bytes = prepared_bytes(*posed, &given.arguments);
  std::byte* const host = aligned_workspace(left, bytes);
  const Result<Buffer> memory = Buffer::make(device, bytes);
  if (!memory.ok()) return memory.status();
  if (const Status sent = memory->upload(host, bytes); !sent.ok()) return sent;

  const auto substitute = [&](Quantize config, std::int64_t) {
    if (config.to == Element::e4m3) config.to = element_of(given.format);
    return config;
  };
  left.call = prepare_call(*posed, staged->on_device(), memory->data(),
                           code_for(gpu.info.arch).arch, substitute);
  LoadedQuantizers quantizers(gpu);
  if (const Status ran = quantizers.launch(left.call, nullptr); !ran.ok()) return ran;
  if (const Status done = synchronize(device); !done.ok()) return done;
  if (const Status got = memory->download(host, bytes); !got.ok()) return got;

  // The same places on the host.
  const auto* const base = static_cast<const std::byte*>(memory->data());
  Arguments& a = left.call.arguments;
  for (ConstTensor* t : {&a.q, &a.k, &a.v})
    t->data = host + (static_cast<const std::byte*>(t->data) - base);
  for (Scales* s : {&a.q_scales, &a.k_scales, &a.v_scales})
    if (s->data != nullptr)
      s->data = reinterpret_cast<const float*>(
          host + (reinterpret_cast<const std::byte*>(s->data) - base));
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
