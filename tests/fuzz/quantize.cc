// SPDX-License-Identifier: Apache-2.0
// Fuzz target: quantize and dequantize through the C interface. A failed call leaves the quantized
// values, scales and mean unchanged and sets an error sentence; a successful one writes all of them
// and nothing else, and its result can be dequantized.
#include <bit>
#include <cmath>

#include "c_tensor.h"

namespace octavo::fuzz {
namespace {

constexpr std::uint8_t kFirst = 0xa5, kSecond = 0x5a;

struct Call {
  octavo_tensor x, codes;
  octavo_quantize_options options;
  Operand x_memory, codes_memory;
  std::vector<float> given;   // scales, when they are an input
  std::vector<float> scales;  // of this call
  std::vector<float> mean;
  bool with_mean = false;
};

void choose(Reader& in, Call& call) {
  const std::int64_t b = in.between(0, 2), h = in.between(0, 3), s = in.between(0, 40),
                     d = in.between(in.one_in(8) ? 0 : 1, 40);
  call.x = make_view(in, in.one_in(32) ? in.below(8) : in.below(3), b, h, s, d);
  call.codes = make_view(in, in.one_in(32) ? in.below(8) : 3 + in.below(4), b, h, s, d);
  octavo_quantize_options_init(&call.options);
  call.options.granularity = in.below(5);
  call.options.block_rows = in.between(1, 20);
  call.options.scale_rule = in.one_in(3);
  call.options.smooth = in.one_in(3);
  call.options.hadamard = in.one_in(3);
  call.options.scales_given = in.one_in(4);
}

void spoil(Reader& in, Call& call) {
  octavo_tensor* const tensors[] = {&call.x, &call.codes};
  switch (in.below(5)) {
    case 0:
      in.pick(tensors)->shape[in.below(4)] = in.pick(kInsane);
      break;
    case 1:
      in.pick(tensors)->stride[in.below(4)] = in.pick(kInsane);
      break;
    case 2:
      call.options.block_rows = in.pick(kInsane);
      break;
    case 3:
      call.options.granularity = in.pick({-1, 5, 255, 256, INT32_MIN});
      break;
    default:
      call.options.scale_rule = in.pick({-1, 2, 255, INT32_MAX});
  }
}

// False: not a call for a test.
bool allocate(Reader& in, Call& call) {
  if (call.x_memory.allocate(call.x) == Operand::Span::too_large) return false;
  if (call.codes_memory.allocate(call.codes) == Operand::Span::too_large) return false;
  call.x_memory.fill(in, call.x.dtype);
  // The enumeration has the values of a byte; any other value must not even be converted to it.
  const std::int32_t code = call.options.granularity;
  const std::int64_t count =
      code < 0 || code > 255
          ? 0
          : octavo_scale_count(call.x.shape, static_cast<octavo_granularity>(code),
                               call.options.block_rows);
  if (count > (1 << 20)) return false;
  call.given.assign(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), 0.5f);
  if (call.options.scales_given != 0 && !call.given.empty() && in.one_in(4))
    call.given.back() = in.pick({NAN, INFINITY, 0.0f, -1.0f, 1e-38f, 1e38f});
  call.with_mean = call.options.smooth != 0 ? !in.one_in(8) : in.one_in(4);
  std::int64_t means = 1;
  for (const int i : {0, 1, 3})
    means = call.x.shape[i] < 0 || call.x.shape[i] > 4096 ? 0 : means * call.x.shape[i];
  call.mean.resize(static_cast<std::size_t>(means));
  return true;
}

struct Outcome {
  octavo_status status;
  std::vector<std::uint8_t> codes, scales, mean;
};

template <class T>
std::vector<std::uint8_t> bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(values.data());
  return {begin, begin + values.size() * sizeof(T)};
}

Outcome run(Call& call, std::uint8_t poison) {
  call.codes_memory.poison(poison);
  call.scales = call.given;
  const auto poisoned = std::bit_cast<float>(std::uint32_t{0x01010101} * poison);
  if (call.options.scales_given == 0) std::fill(call.scales.begin(), call.scales.end(), poisoned);
  std::fill(call.mean.begin(), call.mean.end(), poisoned);
  octavo_range_stats stats = {};
  const octavo_status status =
      octavo_quantize(&call.x, &call.options, &call.codes, call.scales.data(),
                      call.with_mean ? call.mean.data() : nullptr, &stats);
  return {status, call.codes_memory.copy(), bytes_of(call.scales), bytes_of(call.mean)};
}

void check_inverse(Reader& in, Call& call) {
  octavo_scales scales = {};
  scales.data = call.scales.data();
  scales.granularity = call.options.granularity;
  scales.block_rows = call.options.block_rows;
  octavo_tensor back = make_view(in, in.below(3), call.x.shape[0], call.x.shape[1], call.x.shape[2],
                                 call.x.shape[3]);
  Operand memory;
  if (memory.allocate(back) != Operand::Span::exact) return;
  memory.poison(kFirst);
  require(octavo_dequantize(&call.codes, &scales, &back) == OCTAVO_OK, "codes can be turned back");
  const auto first = memory.copy();
  memory.poison(kSecond);
  require(octavo_dequantize(&call.codes, &scales, &back) == OCTAVO_OK, "twice");
  const auto every = [](std::int64_t) { return true; };
  require_written(first, kFirst, memory.copy(), kSecond, element_map(back, memory.bytes(), every),
                  true);
}

void check(Reader& in, Call& call) {
  const auto x = call.x_memory.copy();
  const Outcome first = run(call, kFirst), second = run(call, kSecond);
  require(x == call.x_memory.copy(), "the input stays");
  require(first.status == second.status, "the same call ends the same way");
  if (first.status != OCTAVO_OK) {
    require_sentence(octavo_last_error());
    require_untouched(first.codes, kFirst, "a failed call leaves the codes as they were");
    require_untouched(first.mean, kFirst, "a failed call leaves the mean as it was");
    if (call.options.scales_given == 0)
      require_untouched(first.scales, kFirst, "a failed call leaves the scales as they were");
    return;
  }
  const auto every = [](std::int64_t) { return true; };
  require_written(first.codes, kFirst, second.codes, kSecond,
                  element_map(call.codes, call.codes_memory.bytes(), every), true);
  require(first.scales == second.scales, "every scale is written");
  if (call.options.smooth != 0)
    require(first.mean == second.mean, "the mean is written when smoothing");
  else
    require_untouched(first.mean, kFirst, "the mean is not written otherwise");
  for (const float scale : call.scales)
    require(std::isfinite(scale) && scale > 0, "a scale is a positive number");
  check_inverse(in, call);
}

}  // namespace
}  // namespace octavo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octavo::fuzz;
  Reader in({data, size});
  Call call;
  choose(in, call);
  if (in.one_in(3)) spoil(in, call);
  if (allocate(in, call)) check(in, call);
  return 0;
}
