// SPDX-License-Identifier: Apache-2.0
// The case table: one list of attention problems for the tests, the check and the bench.
//
// A case is a value: everything about it, including its random inputs, follows from its fields, and
// name() contains all of them, so two cases with one name are the same case.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

enum class Layout : std::uint8_t {
  bhsd,
  bshd,
  gaps,    // strides with gaps, in the tensors, in the LSE and in the scales
  varlen,  // varlen: cu_seqlens, with tokens before and after the sequences that belong to none
  aligned_gaps,  // strides with gaps that keep rows aligned to 16 bytes; of paged caches only
};

// The distribution of random values. `positive` and `equal_keys` add up without cancellation, which
// exposes a sum that drifts with the number of keys.
enum class InputValues : std::uint8_t {
  normal,
  positive,    // V without its signs
  equal_keys,  // every key of a head, and its row of V, is the first one
  low_tail,    // all keys after the first 64 have low scores: each has little weight, but together
               // they have much, which exposes a kernel that skips them
};

// cu_seqlens of a varlen batch of kHostileSequences, lengths and page table of a paged cache, or
// the lists of a block mask.
enum class Seqlens : std::uint8_t {
  plain,
  hostile,  // negative, beyond the end, decreasing, too long; the host would refuse them
  clamped,  // the sequences to which kernels must clamp the hostile ones
};
inline constexpr std::int64_t kHostileSequences = 5;

// The keys of the sequences of a paged cache: the same number in each, or any up to the capacity.
enum class KeyLengths : std::uint8_t {
  none,
  one,
  page_less_one,
  page,
  page_and_one,
  longest,
  mixed
};
inline constexpr int kKeyLengths = 7;

struct Case {
  std::int64_t batch = 1;  // the number of sequences in a varlen batch
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t seqlen_q = 1;  // the longest sequence in a varlen batch
  std::int64_t seqlen_kv = 1;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 0;  // columns of V and the output; 0: head_dim
  DType input = DType::f16;
  DType out = DType::f16;
  // Type of V if it differs: f16 or bf16 with 8-bit inputs, or another 8-bit type.
  std::optional<DType> v{};
  std::optional<DType> kv{};  // of K and V, if they have 8 or 4 bits and Q is 16-bit
  std::int64_t kv_group = 0;  // of int4: channels that share a scale
  Options options{};
  Granularity qk_scales = Granularity::head;  // of 8-bit inputs
  Granularity v_scales = Granularity::head;
  Layout layout = Layout::bhsd;
  // Padding, and the modifiers besides options.softcap. The shapes of bias and mask, the keys that
  // they hide, and the rows of padding follow from the seed.
  bool padded = false;
  // A paged cache, if page_size > 0. seqlen_kv is the capacity of a sequence, the layout is that of
  // the pages, and page table and lengths follow from the seed.
  std::int64_t page_size = 0;
  KeyLengths key_lengths = KeyLengths::mixed;
  bool shared_prefix = false;  // sequences begin with the same pages
  std::optional<DType> bias{};
  bool mask = false;
  bool alibi = false;
  bool sinks = false;
  std::int64_t block_mask = 0;  // the size of its blocks; 0: none. Its lists follow from the seed
  bool draft_tree = false;      // its bits follow from the seed
  std::optional<float> scale{};
  bool lse = true;
  Seqlens seqlens = Seqlens::plain;
  bool amax = false;  // amax is requested
  InputValues values = InputValues::normal;
  bool outliers = false;          // one channel of Q, K and V is far larger than the others
  std::int64_t sampled_rows = 0;  // judge this many rows per head; 0: all of them
  std::uint64_t seed = 0;
  std::string config{};  // the kernel configuration to force on a GPU; empty: the chosen one

  std::int64_t v_columns() const { return head_dim_v > 0 ? head_dim_v : head_dim; }
  DType k_type() const { return kv.value_or(input); }
  DType v_type() const { return kv ? *kv : v.value_or(input); }
  bool has_int4_cache() const { return k_type() == DType::int4; }
  std::string name() const;
};

// The axes whose every pair of values occurs in the covering set.
enum Axis { kMask, kFormat, kRatio, kLayout, kLength, kHeadDim, kModifiers, kAxes };
using AxisValues = std::array<int, kAxes>;

// The number of values of each axis. Masks: none, top_left, bottom_right, window, both causal kinds
// with a window. Formats: three wide inputs in nine precisions, then the four 8-bit inputs. Ratios:
// 1, 2, 4, one KV head for all. Lengths: one, few, aligned, ragged, fewer queries than keys, more,
// no keys, long. Head dimensions: kHeadDims. Modifiers: none, six triples that together contain
// every pair of softcap, bias, mask, ALiBi, sinks and padding, one of these alone, all of them;
// without those that a layout or format does not allow.
inline constexpr std::array<std::int64_t, 9> kHeadDims = {8, 33, 40, 64, 80, 96, 128, 192, 256};
inline constexpr AxisValues kAxisSizes = {6, 31, 4, 4, 8, static_cast<int>(kHeadDims.size()), 9};

// A small set of rows in which every pair of values of two axes occurs. Greedy and deterministic.
template <std::size_t axes>
std::vector<std::array<int, axes>> covering_rows(const std::array<int, axes>& sizes);

// A case with these axis values; the seed determines the rest.
Case make_case(const AxisValues& values, std::uint64_t seed);

// The same case without padding and modifiers, with as many columns of V as of Q and K.
Case without_modifiers(const Case& c);

// A case whose axis values also follow from the seed; every other one has no modifiers.
Case random_case(std::uint64_t seed);
// A random case for the emulator: at most 200 queries and keys, mostly few heads, and rarely wide
// heads.
Case small_random_case(std::uint64_t seed);

std::vector<Case> covering_cases(std::uint64_t seed);
// Cases whose sums have no cancellation, with up to 200,000 keys. They have few rows, to limit the
// CPU's time.
std::vector<Case> many_keys_cases(std::uint64_t seed);
// The covering set and many_keys_cases(), then random draws until there are `count` distinct names.
std::vector<Case> all_cases(std::uint64_t seed, std::size_t count = 2400);

// The range from which size_cases() draws.
struct SizeRange {
  std::int64_t head_dim_step = 1;  // the GPU kernels serve multiples of 8
  double most_products = 4e7;      // of a query row, a key and a column: bounds the oracle's time
};
// Every head_dim up to 256, every number of heads and every batch up to 32, and lengths from each
// power of two to the next, up to 16,384 queries and 65,536 keys. The seed determines the lengths
// and, for each case, mask, format, ratio of heads and layout.
std::vector<Case> size_cases(std::uint64_t seed, const SizeRange& range = {});

// The names of the kernels that a device runs a case with; empty if it does not serve the case.
using KernelsOf = std::function<std::vector<std::string>(const Case&)>;
// `count` distinct cases that a device serves: every pair of the axis values that it serves, then
// random draws with all multiples of 8 up to 256 as head dimensions, and grids that fill a GPU.
// Kernels are compiled on demand: once the cases need `most_kernels`, a draw that needs another
// kernel is dropped.
std::vector<Case> served_cases(std::uint64_t seed, std::size_t count, const KernelsOf& kernels_of,
                               std::size_t most_kernels);

// Filters `cases`: keeps those that a device serves, without modifiers if necessary, as long as
// they need at most `most_kernels` kernels.
std::vector<Case> only_served(const std::vector<Case>& cases, const KernelsOf& kernels_of,
                              std::size_t most_kernels);

std::vector<Case> twelve_cases();
std::vector<Case> preset_cases(std::uint64_t seed);

// The cases of a suite, or an error that lists the suites.
Result<std::vector<Case>> suite_cases(const std::string& suite, std::uint64_t seed);

}  // namespace octavo::evidence
