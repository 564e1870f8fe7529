// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/call.h"
#include "octavo/block_mask.hpp"
#include "octavo/octavo.h"

namespace octavo {
namespace {

using test::Call;

octavo_tensor c_tensor(const ConstTensor& t) {
  octavo_tensor c{const_cast<void*>(t.data), static_cast<std::int32_t>(t.dtype), {}, {}};
  for (int i = 0; i < 4; ++i) {
    c.shape[i] = t.shape[static_cast<std::size_t>(i)];
    c.stride[i] = t.stride[static_cast<std::size_t>(i)];
  }
  return c;
}

octavo_arguments c_arguments(const Call& call) {
  octavo_arguments c;
  octavo_arguments_init(&c);
  c.q = c_tensor(call.arguments.q);
  c.k = c_tensor(call.arguments.k);
  c.v = c_tensor(call.arguments.v);
  c.out = c_tensor(call.arguments.out);
  c.lse = c_tensor(call.arguments.lse);
  return c;
}

TEST(CApi, GivesTheSameBitsAsTheCppCall) {
  Call cpp(1, 4, 2, 17, 30, 16), c(1, 4, 2, 17, 30, 16);
  Options options;
  options.causal = Causal::bottom_right;
  options.window_left = 9;
  options.precision = Precision::int8;
  options.quantization.hadamard = true;
  cpp.arguments.scale = 0.3f;
  ASSERT_TRUE(attention(cpp.arguments, options).ok());

  octavo_arguments arguments = c_arguments(c);
  arguments.has_scale = 1;
  arguments.scale = 0.3f;
  octavo_options o;
  octavo_options_init(&o);
  o.causal = OCTAVO_CAUSAL_BOTTOM_RIGHT;
  o.window_left = 9;
  o.precision = OCTAVO_INT8_PRECISION;
  o.hadamard = 1;
  ASSERT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_OK) << octavo_last_error();
  EXPECT_EQ(cpp.out, c.out);
  EXPECT_EQ(cpp.lse, c.lse);
}

TEST(CApi, BlockMasks) {
  Call cpp(1, 2, 1, 100, 150, 16), c(1, 2, 1, 100, 150, 16);
  // The first block of queries sees a block in full and bits of another, the second one block.
  const std::vector<std::int32_t> counts = {1, 0}, indices = {2, 0, 0, 0}, full_counts = {1, 1},
                                  full_indices = {0, 0, 1, 0}, bit_indices = {0, 0, 0, 0};
  alignas(16) std::uint32_t bits[64 * 2];
  for (std::uint32_t i = 0; i < 64 * 2; ++i) bits[i] = 0x9e3779b9u * (i + 1);
  BlockMask& m = cpp.arguments.block_mask;
  m = {.block_size = 64, .q_blocks = 2};
  m.kv_num_blocks = counts.data();
  m.kv_indices = indices.data();
  m.kv_capacity = m.full_kv_capacity = 2;
  m.full_kv_num_blocks = full_counts.data();
  m.full_kv_indices = full_indices.data();
  m.bit_indices = bit_indices.data();
  m.bits = bits;
  m.bit_blocks = 1;
  ASSERT_TRUE(attention(cpp.arguments, {}).ok());

  octavo_arguments arguments = c_arguments(c);
  octavo_block_mask& cm = arguments.block_mask;
  cm = {64,
        1,
        1,
        2,
        counts.data(),
        indices.data(),
        2,
        full_counts.data(),
        full_indices.data(),
        2,
        bit_indices.data(),
        bits,
        1};
  ASSERT_EQ(octavo_attention(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_EQ(cpp.out, c.out);
  EXPECT_EQ(cpp.lse, c.lse);
  // Without the block mask the results differ.
  cm = {};
  ASSERT_EQ(octavo_attention(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK);
  EXPECT_NE(cpp.out, c.out);
}

TEST(CApi, BlockMaskFromRanges) {
  std::vector<std::int32_t> begin(100), end(100, 70);
  for (std::size_t i = 0; i < begin.size(); ++i) begin[i] = i < 64 ? 0 : 5;
  const KeyRanges ranges{
      .begin = begin.data(), .end = end.data(), .seqlen_q = 100, .seqlen_kv = 90};
  const OwnedBlockMask cpp = block_mask_from_ranges(ranges, 64).value();
  octavo_key_ranges given = {begin.data(), end.data(), 1, 1, 100, 90, OCTAVO_CAUSAL_NONE};
  octavo_owned_block_mask* made = nullptr;
  ASSERT_EQ(octavo_block_mask_from_ranges(&given, 64, &made), OCTAVO_OK) << octavo_last_error();
  octavo_block_mask view;
  ASSERT_EQ(octavo_owned_block_mask_view(made, &view), OCTAVO_OK);
  EXPECT_EQ(view.q_blocks, 2);
  EXPECT_EQ(view.kv_capacity, 2);
  EXPECT_EQ(view.full_kv_num_blocks[0], 1);
  EXPECT_EQ(std::vector<std::int32_t>(view.kv_indices, view.kv_indices + 4), cpp.kv_indices);
  EXPECT_EQ(std::vector<std::uint32_t>(view.bits, view.bits + view.bit_blocks * 128), cpp.bits);
  octavo_owned_block_mask_destroy(made);
  octavo_owned_block_mask_destroy(nullptr);
  given.causal = 7;
  EXPECT_EQ(octavo_block_mask_from_ranges(&given, 64, &made), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "ranges.causal is 7; supported: none, top_left, bottom_right.");
  EXPECT_EQ(octavo_block_mask_from_ranges(nullptr, 64, &made), OCTAVO_INVALID_ARGUMENT);
  EXPECT_EQ(octavo_owned_block_mask_view(nullptr, &view), OCTAVO_INVALID_ARGUMENT);
}

TEST(CApi, PaddingAndScoreModifiers) {
  Call cpp(2, 4, 2, 17, 30, 16), c(2, 4, 2, 17, 30, 16);
  std::vector<float> bias(4 * 30), slopes = {1, 2, 3, 4, 5, 6, 7, 8, 9}, sinks = {0, 1, 2, 3};
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.01f * static_cast<float>(i % 17);
  std::vector<std::uint8_t> mask(17 * 30);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 0;
  const std::int32_t seqlens_q[] = {9, 10}, seqlens_kv[] = {20, 25};
  const std::int32_t leftpad_q[] = {8, 0}, leftpad_kv[] = {1, 5};
  Options options;
  options.softcap = 1.5f;
  Arguments& a = cpp.arguments;
  a.seqlens_q = seqlens_q, a.seqlens_kv = seqlens_kv;
  a.leftpad_q = leftpad_q, a.leftpad_kv = leftpad_kv;
  a.bias = ConstTensor::bhsd(bias.data(), DType::f32, 1, 4, 1, 30);
  a.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 1, 1, 17, 30);
  a.alibi_slopes = slopes.data();
  a.alibi_batch_stride = 5;
  a.sinks = sinks.data();
  ASSERT_EQ(attention(a, options).message(), "");

  octavo_arguments arguments = c_arguments(c);
  arguments.seqlens_q = seqlens_q, arguments.seqlens_kv = seqlens_kv;
  arguments.leftpad_q = leftpad_q, arguments.leftpad_kv = leftpad_kv;
  arguments.bias = octavo_tensor_bhsd(bias.data(), OCTAVO_F32, 1, 4, 1, 30);
  arguments.mask = octavo_tensor_bhsd(mask.data(), OCTAVO_BOOL, 1, 1, 17, 30);
  arguments.alibi_slopes = slopes.data();
  arguments.alibi_batch_stride = 5;
  arguments.sinks = sinks.data();
  octavo_options o;
  octavo_options_init(&o);
  o.softcap = 1.5f;
  ASSERT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_OK) << octavo_last_error();
  EXPECT_EQ(cpp.out, c.out);
  EXPECT_EQ(cpp.lse, c.lse);
  o.sm_margin = -1;
  EXPECT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(),
               "sm_margin is -1; supported: 0 (none) to the SMs of the GPU less one.");
  o.size = offsetof(octavo_options, sm_margin);  // an older caller's struct
  EXPECT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_OK);
  Call plain(2, 4, 2, 17, 30, 16);
  ASSERT_TRUE(attention(plain.arguments).ok());
  EXPECT_NE(plain.out, c.out);

  arguments.mask.dtype = OCTAVO_F16;
  EXPECT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "mask.dtype is f16; supported: bool.");
  arguments.mask.dtype = -1;
  EXPECT_EQ(octavo_attention(&arguments, &o, nullptr, nullptr), OCTAVO_INVALID_ARGUMENT);
}

TEST(CApi, EightBitOutputAndAmax) {
  Call cpp(2, 3, 3, 17, 30, 16), c(2, 3, 3, 17, 30, 16);
  const std::vector<float> scales = {0.01f, 0.02f, 0.03f, 0.04f, 0.05f, 0.06f};
  std::vector<float> amax(6, -1.0f), c_amax(6, -2.0f);
  cpp.arguments.out.dtype = DType::int8;
  cpp.arguments.out_scales = {scales.data(), Granularity::head};
  cpp.arguments.out_amax = amax.data();
  ASSERT_EQ(attention(cpp.arguments).message(), "");

  octavo_arguments arguments = c_arguments(c);
  arguments.out.dtype = OCTAVO_INT8;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, nullptr, nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(),
               "out_scales.data is null; supported: an array of scales, for an output of int8.");
  arguments.out_scales.data = scales.data();
  arguments.out_scales.granularity = OCTAVO_PER_HEAD;
  arguments.out_amax = c_amax.data();
  ASSERT_EQ(octavo_attention(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_EQ(std::memcmp(cpp.out.data(), c.out.data(), cpp.out.size() * sizeof(float)), 0);
  EXPECT_EQ(amax, c_amax);
  EXPECT_GT(amax[5], 0.0f);
}

TEST(CApi, PlansRunAndAreDestroyed) {
  Call call(1, 2, 2, 12, 12, 8), expected(1, 2, 2, 12, 12, 8);
  ASSERT_TRUE(attention(expected.arguments).ok());
  octavo_arguments arguments = c_arguments(call);
  octavo_plan* plan = nullptr;
  ASSERT_EQ(octavo_plan_create(&arguments, nullptr, "cpu", &plan), OCTAVO_OK);
  std::size_t bytes = 0;
  ASSERT_EQ(octavo_plan_workspace_bytes(plan, &arguments, &bytes), OCTAVO_OK);
  std::vector<std::byte> workspace(bytes);
  EXPECT_EQ(octavo_plan_run(plan, &arguments, nullptr, 0, nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
  EXPECT_EQ(octavo_plan_run(plan, &arguments, workspace.data(), bytes, nullptr), OCTAVO_OK);
  EXPECT_EQ(call.out, expected.out);
  octavo_plan_destroy(plan);
  octavo_plan_destroy(nullptr);
}

TEST(CApi, ErrorsHaveTheLibrarysSentence) {
  Call call(1, 2, 2, 4, 4, 8);
  octavo_arguments arguments = c_arguments(call);
  arguments.has_scale = 1;
  arguments.scale = NAN;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "scale is nan; supported: finite numbers.");
  arguments = c_arguments(call);
  arguments.q.dtype = -3;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(octavo_last_error()).find("q.dtype is code -3"), std::string::npos);
  arguments = c_arguments(call);
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "tpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_EQ(octavo_attention(nullptr, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "arguments is null; supported: a pointer.");
  EXPECT_EQ(octavo_plan_create(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_EQ(octavo_quantize(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
}

TEST(CApi, StructsOfOtherVersions) {
  Call call(1, 2, 2, 4, 4, 8);
  octavo_arguments arguments = c_arguments(call);
  arguments.size = 0;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_NE(std::string(octavo_last_error()).find("arguments.size is 0"), std::string::npos);

  // An older header ends before the page table.
  const std::int32_t page = 0;
  arguments = c_arguments(call);
  arguments.size = offsetof(octavo_arguments, page_table);
  arguments.page_table = &page;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_OK);

  // A newer header's tail is accepted while it is zero.
  struct {
    octavo_arguments known;
    std::int64_t unknown;
  } newer{c_arguments(call), 0};
  newer.known.size = sizeof(newer);
  EXPECT_EQ(octavo_attention(&newer.known, nullptr, "cpu", nullptr), OCTAVO_OK);
  newer.unknown = 1;
  EXPECT_EQ(octavo_attention(&newer.known, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);

  arguments = c_arguments(call);
  arguments.page_table = &page;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
}

// A prompt of 20 tokens, a fork of it, and one token for each, in int8.
TEST(CApi, DecodingOverAKvCache) {
  octavo_kv_cache_options options;
  octavo_kv_cache_options_init(&options);
  options.pages = 6;
  options.page_size = 16;
  options.heads = 2;
  options.head_dim = 8;
  options.dtype = OCTAVO_INT8;
  options.layout = OCTAVO_PAGES_BSHD;
  options.max_batch = 2;
  octavo_kv_cache* cache = nullptr;
  ASSERT_EQ(octavo_kv_cache_create(&options, nullptr, &cache), OCTAVO_OK) << octavo_last_error();
  std::int64_t first = -1, second = -1, number = 0;
  ASSERT_EQ(octavo_kv_cache_add_sequence(cache, &first), OCTAVO_OK);
  ASSERT_EQ(octavo_kv_cache_select(cache, &first, 1, nullptr), OCTAVO_OK);
  const Call prompt(1, 2, 2, 1, 20, 8), step(2, 4, 2, 1, 1, 8);
  octavo_tensor k = c_tensor(prompt.arguments.k), v = c_tensor(prompt.arguments.v);
  const std::vector<float> cos(21 * 4, 0.0f), sin(21 * 4, 1.0f);  // a quarter turn
  octavo_rotary rotary;
  octavo_rotary_init(&rotary);
  rotary.cos = cos.data();
  rotary.sin = sin.data();
  rotary.positions = 21;
  rotary.pairs = 4;
  ASSERT_EQ(octavo_kv_cache_append(cache, &k, &v, &rotary, nullptr), OCTAVO_OK);
  ASSERT_EQ(octavo_kv_cache_fork(cache, first, &second), OCTAVO_OK);
  const std::int64_t both[] = {first, second};
  ASSERT_EQ(octavo_kv_cache_select(cache, both, 2, nullptr), OCTAVO_OK);
  ASSERT_EQ(octavo_kv_cache_reserve(cache, 1, nullptr), OCTAVO_OK);
  k = c_tensor(step.arguments.k), v = c_tensor(step.arguments.v);
  ASSERT_EQ(octavo_kv_cache_append(cache, &k, &v, nullptr, nullptr), OCTAVO_OK);
  ASSERT_EQ(octavo_kv_cache_length(cache, second, &number), OCTAVO_OK);
  EXPECT_EQ(number, 21);
  ASSERT_EQ(octavo_kv_cache_free_pages(cache, &number), OCTAVO_OK);
  EXPECT_EQ(number, 3);  // a shared page, and one each

  octavo_arguments arguments = c_arguments(step);
  ASSERT_EQ(octavo_kv_cache_set_arguments(cache, &arguments), OCTAVO_OK);
  ASSERT_EQ(octavo_attention(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  // The same from the rows that come back.
  for (int b = 0; b < 2; ++b) {
    const Call alone(1, 4, 2, 1, 21, 8);
    octavo_arguments dense = c_arguments(alone);
    ASSERT_EQ(octavo_kv_cache_read(cache, both[b], &dense.k, &dense.v, nullptr), OCTAVO_OK);
    const float x = prompt.k[0], y = prompt.k[4];  // channels 0 and 4 are a pair
    EXPECT_NEAR(alone.k[0], -y, 0.02f);
    EXPECT_NEAR(alone.k[4], x, 0.02f);
    dense.q.data = static_cast<float*>(arguments.q.data) + b * 4 * 8;
    ASSERT_EQ(octavo_attention(&dense, nullptr, nullptr, nullptr), OCTAVO_OK);
    for (std::size_t i = 0; i < 32; ++i)
      EXPECT_NEAR(alone.out[i], step.out[static_cast<std::size_t>(b) * 32 + i], 1e-6f);
  }
  ASSERT_EQ(octavo_kv_cache_free_sequence(cache, first, nullptr), OCTAVO_OK);
  octavo_kv_cache_destroy(cache);
}

TEST(CApi, KvCacheErrors) {
  octavo_kv_cache_options options;
  octavo_kv_cache_options_init(&options);
  EXPECT_EQ(options.page_size, 64);
  octavo_kv_cache* cache = nullptr;
  const auto is = [](octavo_status status, octavo_status code, const std::string& sentence) {
    EXPECT_EQ(status, code) << sentence;
    EXPECT_EQ(std::string(octavo_last_error()), sentence);
  };
  constexpr auto kInvalid = OCTAVO_INVALID_ARGUMENT;
  is(octavo_kv_cache_create(nullptr, nullptr, &cache), kInvalid,
     "options is null; supported: a pointer.");
  is(octavo_kv_cache_create(&options, nullptr, nullptr), kInvalid,
     "cache is null; supported: a pointer.");
  is(octavo_kv_cache_create(&options, nullptr, &cache), kInvalid,
     "pages is 0; supported: 1 to 2147483647.");
  options.pages = options.heads = options.head_dim = 1;
  options.dtype = 300;
  is(octavo_kv_cache_create(&options, nullptr, &cache), kInvalid,
     "dtype is code 300; supported: f32, f16, bf16, e4m3, e5m2, int8, sim8.");
  options.dtype = OCTAVO_F32;
  options.layout = -1;
  is(octavo_kv_cache_create(&options, nullptr, &cache), kInvalid,
     "layout is code -1; supported: bhsd, bshd.");
  options.layout = OCTAVO_PAGES_BHSD;
  ASSERT_EQ(octavo_kv_cache_create(&options, nullptr, &cache), OCTAVO_OK);
  std::int64_t sequence = 0;
  is(octavo_kv_cache_add_sequence(nullptr, &sequence), kInvalid,
     "cache is null; supported: a pointer.");
  is(octavo_kv_cache_add_sequence(cache, nullptr), kInvalid,
     "sequence is null; supported: a pointer.");
  is(octavo_kv_cache_select(cache, nullptr, 1, nullptr), kInvalid,
     "sequences is null; supported: a pointer.");
  is(octavo_kv_cache_fork(cache, 3, &sequence), kInvalid,
     "sequence is 3; supported: sequences of this cache.");
  is(octavo_kv_cache_append(cache, nullptr, nullptr, nullptr, nullptr), kInvalid,
     "k is null; supported: a pointer.");
  ASSERT_EQ(octavo_kv_cache_add_sequence(cache, &sequence), OCTAVO_OK);
  ASSERT_EQ(octavo_kv_cache_select(cache, &sequence, 1, nullptr), OCTAVO_OK);
  is(octavo_kv_cache_advance(cache, 1, nullptr), OCTAVO_UNSUPPORTED,
     "device is cpu; supported here: cuda in advance().");
  is(octavo_kv_cache_reserve(cache, 65, nullptr), kInvalid,
     "tokens is 65; supported: 0 to 64 for sequence 0, which has 0 of 64.");
  octavo_arguments arguments;
  octavo_arguments_init(&arguments);
  arguments.size = offsetof(octavo_arguments, page_table_stride);
  is(octavo_kv_cache_set_arguments(cache, &arguments), kInvalid,
     "arguments.size is " + std::to_string(arguments.size) +
         "; supported: " + std::to_string(offsetof(octavo_arguments, block_mask)) + " or more.");
  octavo_kv_cache_destroy(cache);
  octavo_kv_cache_destroy(nullptr);
}

TEST(CApi, MergesStates) {
  float outs[] = {1, 3}, lses[] = {0, std::log(3.0f)}, out = 0, lse = 0;
  octavo_tensor parts[2], lse_parts[2];
  for (int i = 0; i < 2; ++i) {
    parts[i] = octavo_tensor_bhsd(outs + i, OCTAVO_F32, 1, 1, 1, 1);
    lse_parts[i] = octavo_tensor_bhsd(lses + i, OCTAVO_F32, 1, 1, 1, 1);
  }
  const octavo_tensor merged = octavo_tensor_bhsd(&out, OCTAVO_F32, 1, 1, 1, 1);
  const octavo_tensor merged_lse = octavo_tensor_bhsd(&lse, OCTAVO_F32, 1, 1, 1, 1);
  ASSERT_EQ(octavo_merge_states(parts, lse_parts, 2, &merged, &merged_lse, "cpu", nullptr),
            OCTAVO_OK);
  EXPECT_FLOAT_EQ(out, 2.5f);
  EXPECT_FLOAT_EQ(lse, std::log(4.0f));
  ASSERT_EQ(octavo_merge_states(parts, lse_parts, 1, &merged, nullptr, nullptr, nullptr),
            OCTAVO_OK);
  EXPECT_FLOAT_EQ(out, 1.0f);
  EXPECT_EQ(octavo_merge_states(parts, nullptr, 2, &merged, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "lses is null; supported: a pointer.");
  EXPECT_EQ(octavo_merge_states(nullptr, nullptr, 0, &merged, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
}

// A caller compiled with another header passes that header's struct size.
TEST(CApi, InitialisesNoMoreThanTheCallersStruct) {
  struct {
    octavo_options known;
    unsigned char beyond[16];
  } options;
  const auto fill = [&options](std::size_t size) {
    std::memset(&options, 0x5A, sizeof(options));
    octavo_options_init_sized(&options.known, size);
    std::size_t untouched = 0;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&options);
    while (untouched < sizeof(options) && bytes[sizeof(options) - 1 - untouched] == 0x5A)
      ++untouched;
    return sizeof(options) - untouched;
  };
  const std::size_t older = offsetof(octavo_options, overlap_launch);
  EXPECT_EQ(fill(older), older);
  EXPECT_EQ(options.known.size, older);
  EXPECT_EQ(options.known.window_left, -1);
  EXPECT_EQ(fill(sizeof(octavo_options)), sizeof(octavo_options));
  EXPECT_EQ(fill(sizeof(octavo_options) + 8), sizeof(octavo_options) + 8);
  EXPECT_EQ(options.beyond[0], 0) << "a newer header's fields start at zero";
  octavo_options_init_sized(nullptr, 8);
}

TEST(CApi, QuantizeAndBack) {
  std::vector<float> x = {1, -2, 3, -4, 0, 0, 0, 0};
  std::vector<std::uint8_t> codes(8, 77);
  float scales[2] = {};
  octavo_tensor from = octavo_tensor_bhsd(x.data(), OCTAVO_F32, 1, 1, 2, 4);
  octavo_tensor to = octavo_tensor_bhsd(codes.data(), OCTAVO_SIM8, 1, 1, 2, 4);
  octavo_quantize_options options;
  octavo_quantize_options_init(&options);
  options.granularity = OCTAVO_PER_ROW;
  octavo_range_stats stats;
  ASSERT_EQ(octavo_quantize(&from, &options, &to, scales, nullptr, &stats), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_EQ(scales[0], 4.0f);
  EXPECT_EQ(scales[1], 1.0f) << "a zero group has scale 1";
  for (std::size_t i = 4; i < 8; ++i) EXPECT_EQ(codes[i], 128) << "and the zero code";
  EXPECT_EQ(stats.values, 8);
  EXPECT_EQ(stats.amax, 4.0);

  std::vector<float> back(8, -7);
  octavo_tensor out = octavo_tensor_bhsd(back.data(), OCTAVO_F32, 1, 1, 2, 4);
  octavo_scales by{scales, OCTAVO_PER_ROW, 0, {0, 0, 0}};
  ASSERT_EQ(octavo_dequantize(&to, &by, &out), OCTAVO_OK) << octavo_last_error();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(back[i], x[i], 4.0f / 127 / 2 + 1e-6f);
}

// V is quantized once, transposed, and then used directly: the bits equal those of V by rows.
TEST(CApi, TransposedVGivesTheSameBitsAsRows) {
  constexpr std::int64_t kKeys = 21, kColumns = 8;
  Call call(1, 2, 2, 6, kKeys, kColumns);
  ASSERT_EQ(octavo_transposed_columns(kKeys, 0), 32);
  ASSERT_EQ(octavo_transposed_columns(kKeys, 2), 48);
  ASSERT_EQ(octavo_transposed_begin(20, 1), 32);
  std::vector<std::uint8_t> by_rows(2 * kKeys * kColumns), transposed(2 * kColumns * 32);
  float scales[2 * kColumns] = {};
  octavo_tensor v = c_tensor(call.arguments.v);
  octavo_quantize_options options;
  octavo_quantize_options_init(&options);
  options.granularity = OCTAVO_PER_CHANNEL;
  octavo_tensor rows = octavo_tensor_bhsd(by_rows.data(), OCTAVO_INT8, 1, 2, kKeys, kColumns);
  ASSERT_EQ(octavo_quantize(&v, &options, &rows, scales, nullptr, nullptr), OCTAVO_OK);
  options.layout = OCTAVO_V_TRANSPOSED;
  octavo_tensor columns = octavo_tensor_bhsd(transposed.data(), OCTAVO_INT8, 1, 2, kColumns, 32);
  ASSERT_EQ(octavo_quantize(&v, &options, &columns, scales, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();

  octavo_arguments arguments = c_arguments(call);
  arguments.v = rows;
  arguments.v_scales = {scales, OCTAVO_PER_CHANNEL, 0, {0, 0, 0}};
  ASSERT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_OK);
  const std::vector<float> expected = call.out;
  arguments.v = columns;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT)
      << "rows have another shape";
  arguments.v_layout = OCTAVO_V_TRANSPOSED;
  std::fill(call.out.begin(), call.out.end(), -7.0f);
  ASSERT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_EQ(call.out, expected);
  arguments.q = rows;
  arguments.q.shape[2] = 6;
  arguments.q_scales = {scales, OCTAVO_PER_HEAD, 0, {0, 0, 0}};
  arguments.q_max_quantized = 128;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(
      octavo_last_error(),
      "q_scales.max_quantized is 128; supported: 0 (not known) to 127, the largest of int8.");
  arguments.v_layout = 300;
  EXPECT_EQ(octavo_attention(&arguments, nullptr, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(), "v_layout is code 300; supported: rows, transposed.");
}

TEST(CApi, AutoPrecisionAndLargestQuantizedValue) {
  Call call(1, 2, 2, 4, 4, 8);
  octavo_arguments arguments = c_arguments(call);
  octavo_options o;
  octavo_options_init(&o);
  o.precision = OCTAVO_AUTO;
  o.max_error = -1;
  EXPECT_EQ(octavo_attention(&arguments, &o, "cpu", nullptr), OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(),
               "max_error is -1; supported: positive finite numbers, with precision auto.");
  std::vector<float> x = {1, -2, 3, -4};
  std::vector<std::uint8_t> codes(4);
  float scale = 0;
  octavo_tensor from = octavo_tensor_bhsd(x.data(), OCTAVO_F32, 1, 1, 1, 4);
  octavo_tensor to = octavo_tensor_bhsd(codes.data(), OCTAVO_INT8, 1, 1, 1, 4);
  octavo_quantize_options options;
  octavo_quantize_options_init(&options);
  options.max_quantized = 20;
  ASSERT_EQ(octavo_quantize(&from, &options, &to, &scale, nullptr, nullptr), OCTAVO_OK);
  EXPECT_EQ(scale, 0.2f);
  EXPECT_EQ(static_cast<std::int8_t>(codes[3]), -20);
}

TEST(CApi, ScaleCountsFollowTheGranularity) {
  const std::int64_t shape[4] = {2, 3, 130, 64};
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_TENSOR, 0), 1);
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_HEAD, 0), 6);
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_BLOCK, 64), 18);
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_ROW, 0), 780);
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_CHANNEL, 0), 384);
  EXPECT_EQ(octavo_scale_count(shape, OCTAVO_PER_BLOCK, 0), -1);
  constexpr std::int64_t kHuge = INT64_MAX;
  const std::int64_t large[4] = {1 << 20, 1 << 20, kHuge / 2, 64};
  EXPECT_EQ(octavo_scale_count(large, OCTAVO_PER_HEAD, 0), std::int64_t{1} << 40);
  EXPECT_EQ(octavo_scale_count(large, OCTAVO_PER_ROW, 0), -1);
  EXPECT_EQ(octavo_scale_count(large, OCTAVO_PER_BLOCK, 64), -1);
  EXPECT_EQ(scale_count({1 << 20, 1 << 20, kHuge / 2, 64}, Granularity::row), 0);
  const std::int64_t without_heads[4] = {kHuge, 0, kHuge, 64};
  EXPECT_EQ(octavo_scale_count(without_heads, OCTAVO_PER_ROW, 0), 0);
  EXPECT_EQ(octavo_scale_count(nullptr, OCTAVO_PER_HEAD, 0), -1);
}

TEST(CApi, ExplainTruncatesToTheBufferAndReturnsTheFullLength) {
  Call call(1, 2, 2, 4, 4, 8);
  octavo_arguments arguments = c_arguments(call);
  std::size_t needed = 0;
  ASSERT_EQ(octavo_explain(&arguments, nullptr, "cpu", nullptr, 0, &needed), OCTAVO_OK);
  ASSERT_GT(needed, 20u);
  std::vector<char> text(needed + 1, '#');
  ASSERT_EQ(octavo_explain(&arguments, nullptr, "cpu", text.data(), needed, nullptr), OCTAVO_OK);
  EXPECT_EQ(std::strlen(text.data()), needed - 1);
  EXPECT_NE(std::string(text.data()).find("cpu_forward"), std::string::npos);
  char small[8];
  ASSERT_EQ(octavo_explain(&arguments, nullptr, "cpu", small, sizeof(small), nullptr), OCTAVO_OK);
  EXPECT_EQ(std::strlen(small), 7u);
}

TEST(CApi, SizesOfATransposedVThatAreTooLargeAreNone) {
  constexpr std::int64_t kHuge = INT64_MAX;
  EXPECT_EQ(octavo_transposed_columns(kHuge - 15, 0), kHuge - 15);
  for (const std::int64_t keys : {kHuge, kHuge - 14, std::int64_t{-1}, INT64_MIN}) {
    EXPECT_EQ(octavo_transposed_columns(keys, 0), -1) << keys;
    EXPECT_EQ(transposed_columns(keys), 0) << keys;
    EXPECT_EQ(octavo_transposed_columns(keys, 1), -1) << keys;
    EXPECT_EQ(octavo_transposed_begin(keys, 1), -1) << keys;
    EXPECT_EQ(transposed_begin(keys, 1), 0) << keys;
  }
  EXPECT_EQ(octavo_transposed_columns(20, kHuge), -1);
  EXPECT_EQ(octavo_transposed_columns(20, kHuge / 16), -1);
  EXPECT_EQ(octavo_transposed_columns(20, -1), -1);
  EXPECT_EQ(octavo_transposed_begin(20, kHuge), -1);
  EXPECT_EQ(octavo_transposed_begin(20, 2), 48);
}

}  // namespace
}  // namespace octavo
