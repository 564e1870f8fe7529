// SPDX-License-Identifier: Apache-2.0
// Plans, the one-call form and the C interface of the backward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "attention/backward_call.h"
#include "attention/reference.h"
#include "octavo/octavo.h"
#include "runtime/staging.h"

namespace octavo {
namespace {

using test::BackwardCall;

octavo_tensor c_tensor_of(const ConstTensor& t) {
  octavo_tensor c{const_cast<void*>(t.data), static_cast<std::int32_t>(t.dtype), {}, {}};
  std::memcpy(c.shape, t.shape.data(), sizeof(c.shape));
  std::memcpy(c.stride, t.stride.data(), sizeof(c.stride));
  return c;
}

octavo_backward_arguments c_arguments_of(const BackwardArguments& a) {
  octavo_backward_arguments c;
  octavo_backward_arguments_init(&c);
  c.q = c_tensor_of(a.q);
  c.k = c_tensor_of(a.k);
  c.v = c_tensor_of(a.v);
  c.out = c_tensor_of(a.out);
  c.lse = c_tensor_of(a.lse);
  c.dout = c_tensor_of(a.dout);
  c.dq = c_tensor_of(a.dq);
  c.dk = c_tensor_of(a.dk);
  c.dv = c_tensor_of(a.dv);
  if (a.scale) {
    c.has_scale = 1;
    c.scale = *a.scale;
  }
  c.cu_seqlens_q = a.cu_seqlens_q;
  c.cu_seqlens_kv = a.cu_seqlens_kv;
  c.sequences = a.sequences;
  c.max_seqlen_q = a.max_seqlen_q;
  c.max_seqlen_kv = a.max_seqlen_kv;
  c.seqlens_q = a.seqlens_q;
  c.seqlens_kv = a.seqlens_kv;
  c.leftpad_q = a.leftpad_q;
  c.leftpad_kv = a.leftpad_kv;
  c.bias = c_tensor_of(a.bias);
  c.mask = c_tensor_of(a.mask);
  c.alibi_slopes = a.alibi_slopes;
  c.alibi_batch_stride = a.alibi_batch_stride;
  c.sinks = a.sinks;
  c.dbias = c_tensor_of(a.dbias);
  c.dsinks = a.dsinks;
  const BlockMask& m = a.block_mask;
  c.block_mask = {m.block_size,      m.batch,
                  m.heads,           m.q_blocks,
                  m.kv_num_blocks,   m.kv_indices,
                  m.kv_capacity,     m.full_kv_num_blocks,
                  m.full_kv_indices, m.full_kv_capacity,
                  m.bit_indices,     m.bits,
                  m.bit_blocks};
  return c;
}

bool same_gradients(const BackwardCall& a, const BackwardCall& b) {
  return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv;
}

Options causal_options() {
  Options options;
  options.causal = Causal::bottom_right;
  options.window_left = 9;
  return options;
}

TEST(Backward, OneCallEqualsAPlanAndTheOracle) {
  const Options options = causal_options();
  BackwardCall one(2, 4, 2, 17, 30, 16), planned(2, 4, 2, 17, 30, 16);
  for (BackwardCall* call : {&one, &planned}) {
    call->arguments.scale = 0.3f;
    ASSERT_TRUE(call->run_forward(options).ok());
  }
  ASSERT_EQ(attention_backward(one.arguments, options).message(), "");
  const Problem problem = problem_of(planned.arguments, options).value();
  const BackwardPlan plan = plan_backward(problem).value();
  EXPECT_EQ(plan.problem(), problem);
  std::vector<std::byte> room(plan.workspace_bytes(planned.arguments));
  ASSERT_EQ(plan.run(planned.arguments, {room.data(), room.size()}).message(), "");
  EXPECT_TRUE(same_gradients(one, planned));
  std::vector<double> dq(one.dq.size()), dk(one.dk.size()), dv(one.dv.size());
  ASSERT_TRUE(reference_backward(one.arguments, options, {dq.data(), dk.data(), dv.data()}).ok());
  for (std::size_t i = 0; i < dq.size(); ++i) ASSERT_NEAR(one.dq[i], dq[i], 1e-5);
  for (std::size_t i = 0; i < dk.size(); ++i) ASSERT_NEAR(one.dk[i], dk[i], 1e-5);
  for (std::size_t i = 0; i < dv.size(); ++i) ASSERT_NEAR(one.dv[i], dv[i], 1e-5);
}

TEST(Backward, APlanRunsOtherLengthsWithoutALargerWorkspace) {
  const Options options = causal_options();
  BackwardCall planned(3, 4, 2, 300, 200, 16);
  const BackwardPlan plan = plan_backward(problem_of(planned.arguments, options).value()).value();
  EXPECT_EQ(plan.workspace_bytes(planned.arguments), plan.workspace_bytes());
  for (const auto& [batch, seqlen_q, seqlen_kv] :
       {std::tuple{1, 300, 200}, {3, 20, 30}, {2, 299, 1}, {1, 1, 200}, {3, 0, 200}}) {
    BackwardCall run(batch, 4, 2, seqlen_q, seqlen_kv, 16),
        one(batch, 4, 2, seqlen_q, seqlen_kv, 16);
    ASSERT_TRUE(run.run_forward(options).ok());
    ASSERT_TRUE(one.run_forward(options).ok());
    const std::size_t bytes = plan.workspace_bytes(run.arguments);
    EXPECT_LE(bytes, plan.workspace_bytes());
    std::vector<std::byte> room(bytes);
    ASSERT_EQ(plan.run(run.arguments, {room.data(), bytes}).message(), "");
    ASSERT_EQ(attention_backward(one.arguments, options).message(), "");
    for (std::size_t i = 0; i < run.dk.size(); ++i) ASSERT_NEAR(run.dk[i], one.dk[i], 1e-5);
    EXPECT_EQ(run.dq, one.dq);
  }
}

TEST(Backward, ARunMustMatchItsPlan) {
  BackwardCall call(1, 4, 2, 8, 8, 16), other(1, 4, 4, 8, 8, 16);
  const BackwardPlan plan = plan_backward(problem_of(call.arguments).value()).value();
  std::vector<std::byte> room(plan.workspace_bytes());
  EXPECT_EQ(
      plan.run(other.arguments, {room.data(), room.size()}).message(),
      "heads_q / heads_kv is 4 / 4; supported: the ratio 4 / 2, for which the plan was made.");
  EXPECT_TRUE(other.untouched());
  const Status small = plan.run(call.arguments, {room.data(), 10});
  EXPECT_EQ(small.code(), ErrorCode::invalid_argument);
  EXPECT_NE(small.message().find("workspace is 10 bytes"), std::string::npos) << small.message();
  EXPECT_TRUE(call.untouched());
  call.arguments.dout.data = nullptr;
  EXPECT_EQ(plan.workspace_bytes(call.arguments), 0u);
}

TEST(Backward, ExplainNamesTheKernel) {
  BackwardCall call(1, 2, 1, 100, 100, 64);
  const Explanation e = explain_backward(problem_of(call.arguments).value()).value();
  EXPECT_EQ(e.device, "cpu");
  EXPECT_EQ(e.kernel, "cpu_backward");
  EXPECT_NE(e.config.find("slices="), std::string::npos) << e.config;
  EXPECT_GT(e.workspace_bytes, 0u);
}

// The workspace grows with the sequence length, not with its square.
TEST(Backward, WorkspaceIsLinearInTheSequenceLength) {
  const auto bytes = [](std::int64_t seqlen) {
    Problem p;
    p.batch = 1, p.heads_q = p.heads_kv = 8;
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.head_dim = p.head_dim_v = 64;
    p.q = p.k = p.v = p.out = DType::f32;
    p.lse = true;
    return static_cast<double>(plan_backward(p).value().workspace_bytes());
  };
  EXPECT_LT(bytes(1 << 16), 33 * bytes(1 << 11));
  EXPECT_LT(bytes(1 << 20), 17 * bytes(1 << 16));
}

TEST(Backward, HugeProblemsRunOutOfMemoryAndNothingOverflows) {
  Problem p;
  p.batch = 1 << 20, p.heads_q = p.heads_kv = 1 << 10;
  p.seqlen_q = p.seqlen_kv = 1 << 28;
  p.head_dim = p.head_dim_v = 1;
  p.q = p.k = p.v = p.out = DType::f32;
  p.lse = true;
  const Result<BackwardPlan> plan = plan_backward(p);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_GT(plan->workspace_bytes(), std::size_t{1} << 30);
}

// GPUs and the emulator have kernels for 16-bit tensors.
TEST(Backward, GpusRefuseOtherTypes) {
  BackwardCall call(1, 2, 2, 8, 8, 16);
  for (const Device device : {Device{Device::Kind::emulator, 0}, Device{Device::Kind::cuda, 0}}) {
    const Problem problem = problem_of(call.arguments).value();
    for (const Status& status :
         {plan_backward(problem, device).status(), explain_backward(problem, device).status(),
          attention_backward_from_host(call.arguments, {}, device)}) {
      EXPECT_EQ(status.code(), ErrorCode::unsupported);
      EXPECT_EQ(status.message(),
                "q.dtype is f32; supported here: f16, bf16 in the backward pass on a GPU.");
    }
  }
  EXPECT_TRUE(call.untouched());
}

// The parts of one array: each is fetched without undoing the others.
TEST(Backward, StagedOutputsThatInterleaveKeepTheirResults) {
  BackwardCall call(1, 2, 2, 6, 6, 8);
  std::vector<float> packed(6 * 3 * 2 * 8, -7.0f);
  int part = 0;
  for (Tensor* t : {&call.arguments.dq, &call.arguments.dk, &call.arguments.dv})
    *t = {packed.data() + 16 * part++, DType::f32, {1, 2, 6, 8}, {288, 8, 48, 1}};
  ASSERT_TRUE(call.run_forward({}).ok());
  const Result<StagedBackwardArguments> staged =
      StagedBackwardArguments::make(call.arguments, {Device::Kind::cpu, 0});
  ASSERT_TRUE(staged.ok()) << staged.status().message();
  ASSERT_EQ(attention_backward(staged->on_device()).message(), "");
  for (const float x : packed) ASSERT_EQ(x, -7.0f);
  ASSERT_TRUE(staged->fetch().ok());
  std::vector<double> dq(call.dq.size()), dk(call.dk.size()), dv(call.dv.size());
  ASSERT_TRUE(reference_backward(call.arguments, {}, {dq.data(), dk.data(), dv.data()}).ok());
  for (std::size_t head = 0; head < 2; ++head)
    for (std::size_t row = 0; row < 6; ++row)
      for (std::size_t c = 0; c < 8; ++c) {
        const std::size_t from = (head * 6 + row) * 8 + c, to = row * 48 + head * 8 + c;
        ASSERT_NEAR(packed[to], dq[from], 1e-5);
        ASSERT_NEAR(packed[to + 16], dk[from], 1e-5);
        ASSERT_NEAR(packed[to + 32], dv[from], 1e-5);
      }
}

TEST(Backward, ThreadsThatCallAtOnceGetTheSameBits) {
  BackwardCall first(1, 2, 2, 90, 70, 32);
  ASSERT_TRUE(first.run_forward({}).ok());
  ASSERT_TRUE(attention_backward(first.arguments).ok());
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (std::size_t n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      BackwardCall call(1, 2, 2, 90, 70, 32);
      same[n] = call.run_forward({}).ok() && attention_backward(call.arguments).ok() &&
                same_gradients(call, first);
    });
  for (std::thread& thread : threads) thread.join();
  for (const int one : same) EXPECT_TRUE(one);
}

TEST(BackwardCApi, GivesTheSameBitsAsTheCppCall) {
  const Options options = causal_options();
  BackwardCall cpp(1, 4, 2, 17, 30, 16), c(1, 4, 2, 17, 30, 16), planned(1, 4, 2, 17, 30, 16);
  for (BackwardCall* call : {&cpp, &c, &planned}) {
    call->arguments.scale = 0.3f;
    ASSERT_TRUE(call->run_forward(options).ok());
  }
  ASSERT_TRUE(attention_backward(cpp.arguments, options).ok());
  octavo_options o;
  octavo_options_init(&o);
  o.causal = OCTAVO_CAUSAL_BOTTOM_RIGHT;
  o.window_left = 9;
  octavo_backward_arguments arguments = c_arguments_of(c.arguments);
  ASSERT_EQ(octavo_attention_backward(&arguments, &o, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_TRUE(same_gradients(cpp, c));

  arguments = c_arguments_of(planned.arguments);
  octavo_backward_plan* plan = nullptr;
  ASSERT_EQ(octavo_backward_plan_create(&arguments, &o, "cpu", &plan), OCTAVO_OK);
  std::size_t bytes = 0;
  ASSERT_EQ(octavo_backward_plan_workspace_bytes(plan, &arguments, &bytes), OCTAVO_OK);
  std::vector<std::byte> room(bytes);
  ASSERT_EQ(octavo_backward_plan_run(plan, &arguments, room.data(), bytes, nullptr), OCTAVO_OK)
      << octavo_last_error();
  octavo_backward_plan_destroy(plan);
  octavo_backward_plan_destroy(nullptr);
  EXPECT_TRUE(same_gradients(cpp, planned));
}

// Everything that changes scores, in a padded batch, and the gradients of bias and sinks.
struct Modifiers {
  std::vector<float> bias = std::vector<float>(4 * 17 * 30), dbias = bias, sinks = {0, 1, 2, -1},
                     dsinks = sinks, slopes = {0.1f, 0.2f, 0.3f, 0.4f, 9, 0.5f, 0.6f, 0.7f, 0.8f};
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(17 * 30);
  std::vector<std::int32_t> seqlens_q = {9, 10}, seqlens_kv = {20, 25}, leftpad_q = {8, 0},
                            leftpad_kv = {1, 5};

  explicit Modifiers(BackwardCall& call) {
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.01f * static_cast<float>(i % 17);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 0;
    BackwardArguments& a = call.arguments;
    a.bias = ConstTensor::bhsd(bias.data(), DType::f32, 1, 4, 17, 30);
    a.dbias = Tensor::bhsd(dbias.data(), DType::f32, 1, 4, 17, 30);
    a.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 1, 1, 17, 30);
    a.sinks = sinks.data(), a.dsinks = dsinks.data();
    a.alibi_slopes = slopes.data(), a.alibi_batch_stride = 5;
    a.seqlens_q = seqlens_q.data(), a.seqlens_kv = seqlens_kv.data();
    a.leftpad_q = leftpad_q.data(), a.leftpad_kv = leftpad_kv.data();
  }
};

TEST(BackwardCApi, PaddingAndScoreModifiers) {
  Options options;
  options.softcap = 1.5f;
  BackwardCall cpp(2, 4, 2, 17, 30, 16), c(2, 4, 2, 17, 30, 16), host(2, 4, 2, 17, 30, 16);
  Modifiers of_cpp(cpp), of_c(c), of_host(host);
  for (BackwardCall* call : {&cpp, &c, &host}) ASSERT_EQ(call->run_forward(options).message(), "");
  ASSERT_EQ(attention_backward(cpp.arguments, options).message(), "");
  std::vector<double> dq(cpp.dq.size()), dk(cpp.dk.size()), dv(cpp.dv.size()),
      dbias(of_cpp.dbias.size()), dsinks(4);
  ASSERT_TRUE(reference_backward(cpp.arguments, options,
                                 {dq.data(), dk.data(), dv.data(), dbias.data(), dsinks.data()})
                  .ok());
  for (std::size_t i = 0; i < dbias.size(); ++i) ASSERT_NEAR(of_cpp.dbias[i], dbias[i], 1e-5);
  for (std::size_t i = 0; i < 4; ++i) ASSERT_NEAR(of_cpp.dsinks[i], dsinks[i], 1e-5);

  octavo_options o;
  octavo_options_init(&o);
  o.softcap = 1.5f;
  octavo_backward_arguments arguments = c_arguments_of(c.arguments);
  ASSERT_EQ(octavo_attention_backward(&arguments, &o, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_TRUE(same_gradients(cpp, c));
  EXPECT_EQ(of_cpp.dbias, of_c.dbias);
  EXPECT_EQ(of_cpp.dsinks, of_c.dsinks);

  // Copies of all of it: what the host has changes only with fetch().
  const Result<StagedBackwardArguments> staged =
      StagedBackwardArguments::make(host.arguments, {Device::Kind::cpu, 0});
  ASSERT_TRUE(staged.ok()) << staged.status().message();
  const std::vector<float> before = of_host.dbias;
  for (auto* input : {&of_host.bias, &of_host.sinks, &of_host.slopes})
    std::fill(input->begin(), input->end(), 100.0f);
  std::fill(of_host.mask.begin(), of_host.mask.end(), std::uint8_t{0});
  std::fill(of_host.seqlens_kv.begin(), of_host.seqlens_kv.end(), 0);
  ASSERT_EQ(attention_backward(staged->on_device(), options).message(), "");
  EXPECT_EQ(of_host.dbias, before);
  ASSERT_TRUE(staged->fetch().ok());
  EXPECT_TRUE(same_gradients(cpp, host));
  EXPECT_EQ(of_cpp.dbias, of_host.dbias);
  EXPECT_EQ(of_cpp.dsinks, of_host.dsinks);
}

// The first block of queries sees a block in full and bits of another, the second one block.
struct Blocks {
  std::vector<std::int32_t> counts = {1, 0}, indices = {2, 0, 0, 0}, full_counts = {1, 1},
                            full_indices = {0, 0, 1, 0}, bit_indices = {0, 0, 0, 0};
  alignas(16) std::array<std::uint32_t, 128> bits{};

  explicit Blocks(BackwardCall& call) {
    for (std::uint32_t i = 0; i < bits.size(); ++i) bits[i] = 0x9e3779b9u * (i + 1);
    call.arguments.block_mask = {.block_size = 64,
                                 .q_blocks = 2,
                                 .kv_num_blocks = counts.data(),
                                 .kv_indices = indices.data(),
                                 .kv_capacity = 2,
                                 .full_kv_num_blocks = full_counts.data(),
                                 .full_kv_indices = full_indices.data(),
                                 .full_kv_capacity = 2,
                                 .bit_indices = bit_indices.data(),
                                 .bits = bits.data(),
                                 .bit_blocks = 1};
  }
};

TEST(BackwardCApi, BlockMasks) {
  BackwardCall cpp(1, 2, 1, 100, 150, 16), c(1, 2, 1, 100, 150, 16), host(1, 2, 1, 100, 150, 16);
  Blocks of_cpp(cpp), of_c(c), of_host(host);
  for (BackwardCall* call : {&cpp, &c, &host}) ASSERT_TRUE(call->run_forward({}).ok());
  ASSERT_EQ(attention_backward(cpp.arguments).message(), "");
  octavo_backward_arguments arguments = c_arguments_of(c.arguments);
  ASSERT_EQ(octavo_attention_backward(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_TRUE(same_gradients(cpp, c));
  // Without the block mask the results differ.
  arguments.block_mask = {};
  ASSERT_EQ(octavo_attention_backward(&arguments, nullptr, nullptr, nullptr), OCTAVO_OK);
  EXPECT_FALSE(same_gradients(cpp, c));

  // The arrays are copied to the device, too.
  const Result<StagedBackwardArguments> staged =
      StagedBackwardArguments::make(host.arguments, {Device::Kind::cpu, 0});
  ASSERT_TRUE(staged.ok()) << staged.status().message();
  for (auto* list : {&of_host.counts, &of_host.full_counts})
    std::fill(list->begin(), list->end(), 0);
  of_host.bits.fill(0);
  ASSERT_EQ(attention_backward(staged->on_device()).message(), "");
  ASSERT_TRUE(staged->fetch().ok());
  EXPECT_TRUE(same_gradients(cpp, host));

  // A plan for blocks of 64 runs no others.
  const BackwardPlan plan = plan_backward(problem_of(cpp.arguments).value()).value();
  EXPECT_NE(plan.explain().kernel, "");
  BackwardArguments other = cpp.arguments;
  other.block_mask.block_size = 0;
  EXPECT_EQ(plan.run(other, {}).message(),
            "block_mask.block_size is 0; supported: 64, for which the plan was made.");
}

TEST(BackwardCApi, VarlenAndExplain) {
  BackwardCall cpp(1, 2, 2, 12, 12, 8), c(1, 2, 2, 12, 12, 8);
  const std::int32_t starts[] = {0, 5, 12};
  for (BackwardCall* call : {&cpp, &c}) {
    call->arguments.cu_seqlens_q = call->arguments.cu_seqlens_kv = starts;
    call->arguments.sequences = 2;
    call->arguments.max_seqlen_q = call->arguments.max_seqlen_kv = 7;
    ASSERT_TRUE(call->run_forward({}).ok());
  }
  ASSERT_TRUE(attention_backward(cpp.arguments).ok());
  const octavo_backward_arguments arguments = c_arguments_of(c.arguments);
  ASSERT_EQ(octavo_attention_backward(&arguments, nullptr, "cpu", nullptr), OCTAVO_OK)
      << octavo_last_error();
  EXPECT_TRUE(same_gradients(cpp, c));
  char text[16];
  std::size_t needed = 0;
  ASSERT_EQ(octavo_explain_backward(&arguments, nullptr, nullptr, text, sizeof(text), &needed),
            OCTAVO_OK);
  EXPECT_STREQ(text, "device cpu, ker");
  EXPECT_GT(needed, sizeof(text));
}

TEST(BackwardCApi, ErrorsAreSentences) {
  BackwardCall call(1, 2, 2, 8, 8, 8);
  octavo_backward_arguments arguments = c_arguments_of(call.arguments);
  arguments.lse.data = nullptr;
  EXPECT_EQ(octavo_attention_backward(&arguments, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_STREQ(octavo_last_error(),
               "lse.data is null; supported: a pointer to the lse of the forward pass.");
  EXPECT_EQ(octavo_attention_backward(nullptr, nullptr, nullptr, nullptr), OCTAVO_INVALID_ARGUMENT);
  arguments = c_arguments_of(call.arguments);
  arguments.dq.dtype = -1;
  EXPECT_EQ(octavo_attention_backward(&arguments, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_EQ(octavo_backward_plan_create(&arguments, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_EQ(octavo_backward_plan_run(nullptr, &arguments, nullptr, 0, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  arguments.size = 3;
  EXPECT_EQ(octavo_attention_backward(&arguments, nullptr, nullptr, nullptr),
            OCTAVO_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
}

}  // namespace
}  // namespace octavo
