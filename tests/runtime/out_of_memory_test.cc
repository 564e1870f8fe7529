// SPDX-License-Identifier: Apache-2.0
// Every allocation of every public function fails once: nothing is thrown, the status says what is
// missing, nothing is written, and the next call is right and has all threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "attention/backward_call.h"
#include "attention/call.h"
#include "counting_allocator.h"
#include "cpu/thread_pool.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.h"

namespace octavo {
namespace {

using test::Call;
using test::FailingAllocation;

constexpr int kThreads = 3;

// Each task waits for the others: without a thread for each they would wait forever.
bool pool_has_all_threads() {
  std::atomic<int> arrived = 0;
  std::atomic<bool> met = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  cpu::parallel_for(kThreads, kThreads, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < kThreads && met) {
      if (std::chrono::steady_clock::now() > end) met = false;
      std::this_thread::yield();
    }
  });
  return met;
}

struct Tally {
  int out_of_memory = 0;
  std::int64_t allocations = 0;
};

// Calls `function` with its first allocation failing, then its second, until none is left to fail.
Tally fail_each_allocation(const std::function<ErrorCode()>& function, ErrorCode expected) {
  Tally tally;
  for (std::int64_t n = 1;; ++n) {
    bool thrown = false, happened = false;
    ErrorCode code = ErrorCode::ok;
    {
      const FailingAllocation failing(n);
      try {
        code = function();
      } catch (...) {
        thrown = true;
      }
      happened = failing.happened();
    }
    EXPECT_FALSE(thrown) << "by allocation " << n;
    if (thrown) return tally;
    // If a thread cannot be started, the call continues without it.
    EXPECT_TRUE(code == expected || (happened && code == ErrorCode::out_of_memory))
        << "allocation " << n << ": " << name(code);
    if (code == ErrorCode::out_of_memory) ++tally.out_of_memory;
    if (!happened) return tally;
    ++tally.allocations;
  }
}

class OutOfMemory : public testing::Test {
 protected:
  OutOfMemory() { EXPECT_TRUE(set_cpu_threads(kThreads).ok()); }
  ~OutOfMemory() override { EXPECT_TRUE(set_cpu_threads(0).ok()); }

  // A new problem, whose plan does not exist yet.
  static Options fresh(Options options = {}) {
    static std::int64_t next = 1'000'000;
    options.window_left = next++;
    return options;
  }
  static Options by_least_squares() {
    Options options{.precision = Precision::fp8};
    options.quantization.rule = ScaleRule::least_squares;
    options.quantization.smooth_k = true;
    return options;
  }
};

// The one-call form: in the plan, in the workspace, and in the threads that search for scales.
TEST_F(OutOfMemory, OfAnAttentionLeavesTheOutputAndTheThreadsAlone) {
  Options automatic{.precision = Precision::automatic};
  automatic.max_error = 1;
  for (const Options& options : {Options(), by_least_squares(), automatic}) {
    Call right(2, 4, 2, 40, 70, 16);
    ASSERT_EQ(attention(right.arguments, fresh(options)).message(), "");
    Call call(2, 4, 2, 40, 70, 16);
    int written = 0;
    const Tally tally = fail_each_allocation(
        [&] {
          std::fill(call.out.begin(), call.out.end(), -7.0f);
          std::fill(call.lse.begin(), call.lse.end(), -7.0f);
          Status status;
          // On a new thread, which has no workspace yet.
          const std::int64_t n = test::until_failure.exchange(0);
          std::thread([&] {
            test::until_failure = n;
            status = attention(call.arguments, fresh(options));
            test::until_failure = 0;
          }).join();
          if (!status.ok() && !call.untouched()) ++written;
          return status.code();
        },
        ErrorCode::ok);
    EXPECT_GT(tally.out_of_memory, 2) << name(options.precision);
    EXPECT_EQ(written, 0) << name(options.precision);
    EXPECT_EQ(call.out, right.out) << name(options.precision);
    EXPECT_TRUE(pool_has_all_threads()) << name(options.precision);
  }
}

TEST_F(OutOfMemory, OfABackwardPassLeavesTheGradientsAlone) {
  test::BackwardCall right(2, 4, 2, 40, 70, 16), call(2, 4, 2, 40, 70, 16);
  for (test::BackwardCall* one : {&right, &call}) ASSERT_EQ(one->run_forward({}).message(), "");
  ASSERT_EQ(attention_backward(right.arguments, fresh()).message(), "");
  int written = 0;
  const Tally tally = fail_each_allocation(
      [&] {
        for (auto* d : {&call.dq, &call.dk, &call.dv}) std::fill(d->begin(), d->end(), -7.0f);
        Status status;
        // On a new thread, which has no workspace yet.
        const std::int64_t n = test::until_failure.exchange(0);
        std::thread([&] {
          test::until_failure = n;
          status = attention_backward(call.arguments, fresh());
          test::until_failure = 0;
        }).join();
        if (!status.ok() && !call.untouched()) ++written;
        return status.code();
      },
      ErrorCode::ok);
  EXPECT_GT(tally.out_of_memory, 2);
  EXPECT_EQ(written, 0);
  EXPECT_EQ(call.dq, right.dq);
  EXPECT_EQ(call.dk, right.dk);
  const Problem problem = problem_of(call.arguments).value();
  EXPECT_GT(
      fail_each_allocation([&] { return explain_backward(problem).status().code(); }, ErrorCode::ok)
          .allocations,
      0);
}

TEST_F(OutOfMemory, InPlansAndRuns) {
  Call call(2, 4, 2, 40, 70, 16);
  const Problem problem = problem_of(call.arguments, by_least_squares()).value();
  const Plan made = plan(problem).value();
  std::vector<std::byte> memory(made.workspace_bytes());
  const Workspace workspace{memory.data(), memory.size()};
  EXPECT_GT(fail_each_allocation([&] { return plan(problem).status().code(); }, ErrorCode::ok)
                .allocations,
            0);
  EXPECT_GT(fail_each_allocation([&] { return explain(problem).status().code(); }, ErrorCode::ok)
                .allocations,
            0);
  EXPECT_GT(fail_each_allocation([&] { return made.run(call.arguments, workspace).code(); },
                                 ErrorCode::ok)
                .out_of_memory,
            0);
  EXPECT_TRUE(pool_has_all_threads());
  const auto refused = [&] { return made.run(call.arguments, {memory.data(), 1}).code(); };
  EXPECT_GT(fail_each_allocation(refused, ErrorCode::invalid_argument).out_of_memory, 0);
  const auto buffer = [] { return Buffer::make({}, 1 << 20).status().code(); };
  EXPECT_EQ(fail_each_allocation(buffer, ErrorCode::ok).out_of_memory, 2);
  Call bad(1, 1, 1, 4, 4, 8);
  bad.arguments.k.shape[3] = 7;
  const auto invalid = [&] { return problem_of(bad.arguments).status().code(); };
  EXPECT_GT(fail_each_allocation(invalid, ErrorCode::invalid_argument).out_of_memory, 0);
  const auto on_host = [&] { return attention_from_host(call.arguments, fresh()).code(); };
  fail_each_allocation(on_host, ErrorCode::ok);
}

// A cache of three sequences. Two of them share a page, so that append() has to copy it and to take
// another.
struct FilledCache {
  static constexpr std::int64_t kHeads = 2, kDim = 8;
  std::vector<float> rows = std::vector<float>(kHeads * 40 * kDim);
  KvCache cache;

  explicit FilledCache(DType dtype)
      : cache(KvCache::create(
                  {.pages = 9, .page_size = 16, .heads = kHeads, .head_dim = kDim, .dtype = dtype})
                  .value()) {
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 97) / 50;
    cache.add_sequence().value();
    EXPECT_EQ(cache.select({{0}}).message(), "");
    EXPECT_EQ(append(20, 1).message(), "");
    EXPECT_EQ(cache.fork(0).value(), 1);
    EXPECT_EQ(cache.add_sequence().value(), 2);
    EXPECT_EQ(cache.select({{2}}).message(), "");
    EXPECT_EQ(append(5, 1).message(), "");
    EXPECT_EQ(cache.select({{0, 1}}).message(), "");
  }
  Status append(std::int64_t tokens, std::int64_t batch) {
    const Tensor t = Tensor::bhsd(rows.data(), DType::f32, batch, kHeads, tokens, kDim);
    return cache.append(t, t);
  }
  // The batch, and the lengths and rows of the sequences.
  std::vector<float> contents() const {
    Arguments a;
    cache.set_arguments(a);
    std::vector<float> all(a.seqlens_kv, a.seqlens_kv + 2);
    for (const std::int64_t sequence : {0, 1, 2}) {
      const Result<std::int64_t> length = cache.length(sequence);
      if (!length.ok()) continue;
      std::vector<float> k(static_cast<std::size_t>(kHeads * *length * kDim)), v = k;
      const auto view = [&](std::vector<float>& x) {
        return Tensor::bhsd(x.data(), DType::f32, 1, kHeads, *length, kDim);
      };
      EXPECT_EQ(cache.read(sequence, view(k), view(v)).message(), "");
      all.insert(all.end(), k.begin(), k.end());
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  }
};

// Each operation, with each of its allocations failing on a cache of its own: it fails and changes
// nothing, and then succeeds as it would have.
TEST_F(OutOfMemory, OfAKvCacheLeavesItAsItWas) {
  const std::function<Status(FilledCache&)> operations[] = {
      [](FilledCache& c) { return c.append(15, 2); },
      [](FilledCache& c) { return c.cache.reserve(40); },
      [](FilledCache& c) { return c.cache.fork(0).status(); },
      [](FilledCache& c) {
        return c.cache.select({{2, 0}});
      },
      [](FilledCache& c) { return c.cache.free_sequence(1); },
  };
  for (const DType dtype : {DType::f16, DType::int8})
    for (const auto& operation : operations) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " operation " << &operation - operations);
      FilledCache right(dtype);
      ASSERT_EQ(operation(right).message(), "");
      bool happened = true;
      for (std::int64_t n = 1; happened; ++n) {
        FilledCache one(dtype);
        const std::vector<float> before = one.contents();
        Status status;
        {
          const FailingAllocation failing(n);
          status = operation(one);
          happened = failing.happened();
        }
        if (status.ok()) continue;  // a thread that is not started is done without
        ASSERT_EQ(status.code(), ErrorCode::out_of_memory) << status.message();
        ASSERT_TRUE(one.contents() == before) << "after allocation " << n;
        ASSERT_EQ(operation(one).message(), "");
        ASSERT_TRUE(one.contents() == right.contents()) << "after allocation " << n;
        ASSERT_EQ(one.cache.free_pages(), right.cache.free_pages());
      }
    }
}

TEST_F(OutOfMemory, InErrorsForUnknownNames) {
  using enum ErrorCode;
  const std::string_view none = "no such name, and one that is too long for a small string";
  const std::vector<std::function<ErrorCode()>> parsers = {
      [&] { return parse_dtype(none).status().code(); },
      [&] { return parse_granularity(none).status().code(); },
      [&] { return parse_v_layout(none).status().code(); },
      [&] { return parse_causal(none).status().code(); },
      [&] { return parse_precision(none).status().code(); },
      [&] { return parse_scale_rule(none).status().code(); },
      [&] { return parse_operand(none).status().code(); },
      [&] { return parse_device(none).status().code(); },
      [&] { return set_cpu_threads(-1).code(); },
  };
  for (const auto& parse : parsers)
    EXPECT_GT(fail_each_allocation(parse, invalid_argument).out_of_memory, 0);
}

TEST_F(OutOfMemory, InQuantizationAndTheOracle) {
  std::vector<float> x(2 * 3 * 20 * 8, 0.5f), back(x.size()), scales(1000), mean(1000);
  std::vector<std::uint8_t> codes(x.size());
  const Tensor values = Tensor::bhsd(x.data(), DType::f32, 2, 3, 20, 8);
  const Tensor quantized = Tensor::bhsd(codes.data(), DType::e4m3, 2, 3, 20, 8);
  const Tensor copy = Tensor::bhsd(back.data(), DType::f32, 2, 3, 20, 8);
  QuantizeOptions options{.rule = ScaleRule::least_squares, .smooth = true, .hadamard = true};
  const auto expect_failures = [](const std::function<ErrorCode()>& function) {
    EXPECT_GT(fail_each_allocation(function, ErrorCode::ok).out_of_memory, 0);
  };
  expect_failures(
      [&] { return quantize(values, options, quantized, scales.data(), mean.data()).code(); });
  // A varlen batch of two sequences, of which neither is written if the other fails.
  const std::array<std::int32_t, 3> starts = {0, 12, 20};
  ConstTensor tokens = values;
  tokens.shape[0] = 1;
  Tensor of_tokens = quantized;
  of_tokens.shape[0] = 1;
  int written = 0;
  expect_failures([&] {
    std::fill(codes.begin(), codes.end(), std::uint8_t{0xa5});
    std::fill(scales.begin(), scales.end(), -7.0f);
    std::fill(mean.begin(), mean.end(), -7.0f);
    const Status status = quantize({.x = tokens,
                                    .quantized = of_tokens,
                                    .scales = scales.data(),
                                    .mean = mean.data(),
                                    .cu_seqlens = starts.data(),
                                    .sequences = 2,
                                    .max_seqlen = 20},
                                   options, Device{});
    const auto is = [](auto wanted) { return [=](auto value) { return value == wanted; }; };
    const bool untouched = std::all_of(codes.begin(), codes.end(), is(std::uint8_t{0xa5})) &&
                           std::all_of(scales.begin(), scales.end(), is(-7.0f)) &&
                           std::all_of(mean.begin(), mean.end(), is(-7.0f));
    if (status.ok() == untouched) ++written;
    return status.code();
  });
  EXPECT_EQ(written, 0);
  expect_failures([&] { return dequantize(quantized, {scales.data()}, copy).code(); });
  expect_failures([&] { return convert(values, copy).code(); });
  expect_failures([&] { return random_normal(values, 1, 2).code(); });
  Calibration calibration;
  expect_failures(
      [&] { return calibration.observe("of this tensor", values, DType::e4m3, {}).code(); });
  expect_failures([&] { return calibration.scales("of this tensor").status().code(); });
  const std::string path = testing::TempDir() + "octavo_out_of_memory_calibration.json";
  expect_failures([&] { return calibration.save(path).code(); });
  expect_failures([&] { return Calibration::load(path).status().code(); });
  // From the n-th allocation on, all fail: also those made while the first failure is handled.
  bool failed = true;
  for (std::int64_t n = 1; failed; ++n) {
    ErrorCode code = ErrorCode::ok;
    {
      const FailingAllocation failing(n, /*and_all_later=*/true);
      code = Calibration::load(path).status().code();
      failed = failing.happened();
    }
    EXPECT_EQ(code, failed ? ErrorCode::out_of_memory : ErrorCode::ok) << n;
  }
  Call call(1, 2, 1, 5, 9, 8);
  std::vector<double> truth(call.out.size());
  expect_failures([&] { return reference(call.arguments, {}, truth.data()).code(); });
}

TEST_F(OutOfMemory, InTheCInterface) {
  Call call(1, 2, 2, 10, 9, 16);
  octavo_arguments arguments;
  octavo_arguments_init(&arguments);
  const auto view = [](const ConstTensor& t) {
    return octavo_tensor_bhsd(const_cast<void*>(t.data), OCTAVO_F32, t.shape[0], t.shape[1],
                              t.shape[2], t.shape[3]);
  };
  arguments.q = view(call.arguments.q);
  arguments.k = view(call.arguments.k);
  arguments.v = view(call.arguments.v);
  arguments.out = view(call.arguments.out);
  const auto status = [](octavo_status code) { return static_cast<ErrorCode>(code); };
  const auto run = [&] {
    octavo_options options;
    octavo_options_init(&options);
    options.window_left = fresh().window_left;
    return status(octavo_attention(&arguments, &options, "cpu", nullptr));
  };
  EXPECT_GT(fail_each_allocation(run, ErrorCode::ok).out_of_memory, 0);
  const auto create = [&] {
    octavo_plan* plan = nullptr;
    const octavo_status code = octavo_plan_create(&arguments, nullptr, "cpu", &plan);
    octavo_plan_destroy(plan);
    return status(code);
  };
  EXPECT_GT(fail_each_allocation(create, ErrorCode::ok).out_of_memory, 0);
  // Storing the sentence for octavo_last_error() allocates too.
  const auto refused = [&] {
    return status(octavo_attention(&arguments, nullptr, "no device of such a name", nullptr));
  };
  EXPECT_GT(fail_each_allocation(refused, ErrorCode::invalid_argument).out_of_memory, 0);
  EXPECT_NE(std::string(octavo_last_error()).find("no device of such a name"), std::string::npos);
}

}  // namespace
}  // namespace octavo
