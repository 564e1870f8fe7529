// SPDX-License-Identifier: Apache-2.0
// KvCache: rows come back as they were appended, sequences do not see each other's, and a failed
// call changes nothing.
#include "octavo/kv_cache.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "numeric/random.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kCacheHeads = 2, kCacheDim = 16;

KvCacheOptions small_cache() {
  KvCacheOptions o;
  o.pages = 8;
  o.page_size = 16;
  o.heads = kCacheHeads;
  o.head_dim = kCacheDim;
  o.dtype = DType::f32;
  o.max_batch = 4;
  o.pages_per_sequence = 5;
  return o;
}

// New rows (batch, heads, tokens, head_dim) of K and V.
struct NewRows {
  std::vector<float> k, v;
  Tensor k_view, v_view;
  NewRows(std::int64_t batch, std::int64_t tokens, std::uint64_t seed)
      : k(static_cast<std::size_t>(batch * kCacheHeads * tokens * kCacheDim)), v(k) {
    k_view = Tensor::bhsd(k.data(), DType::f32, batch, kCacheHeads, tokens, kCacheDim);
    v_view = Tensor::bhsd(v.data(), DType::f32, batch, kCacheHeads, tokens, kCacheDim);
    if (!random_normal(k_view, seed, 1).ok() || !random_normal(v_view, seed, 2).ok()) std::abort();
  }
};

// What a sequence holds, by token: K and V of all heads.
using Token = std::vector<float>;
using Tokens = std::vector<Token>;

Token token_of(const NewRows& rows, std::int64_t b, std::int64_t token) {
  Token found;
  for (const auto* from : {&rows.k, &rows.v})
    for (std::int64_t h = 0; h < kCacheHeads; ++h) {
      const std::int64_t tokens = rows.k_view.shape[2];
      const auto first = from->begin() + ((b * kCacheHeads + h) * tokens + token) * kCacheDim;
      found.insert(found.end(), first, first + kCacheDim);
    }
  return found;
}

Tokens read_tokens(const KvCache& cache, std::int64_t sequence) {
  const std::int64_t length = cache.length(sequence).value();
  NewRows rows(1, length, 0);
  EXPECT_EQ(cache.read(sequence, rows.k_view, rows.v_view).message(), "");
  Tokens found;
  for (std::int64_t i = 0; i < length; ++i) found.push_back(token_of(rows, 0, i));
  return found;
}

std::int64_t sequence_of_length(KvCache& cache, std::int64_t tokens, std::uint64_t seed) {
  const std::int64_t made = cache.add_sequence().value();
  EXPECT_EQ(cache.select({{made}}).message(), "");
  const NewRows rows(1, tokens, seed);
  EXPECT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  return made;
}

TEST(KvCache, RowsComeBackInEveryTypeAndLayout) {
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::int8})
    for (const PageLayout layout : {PageLayout::bhsd, PageLayout::bshd}) {
      KvCacheOptions o = small_cache();
      o.dtype = dtype;
      o.layout = layout;
      KvCache cache = KvCache::create(o).value();
      const std::int64_t sequence = cache.add_sequence().value();
      ASSERT_EQ(cache.select({{sequence}}).message(), "");
      // 20 tokens in the order of tokens first, then 3 one by one.
      NewRows rows(1, 23, 5);
      std::vector<float> swapped(20 * kCacheHeads * kCacheDim);
      const auto part = [](Tensor t, std::int64_t begin, std::int64_t tokens) {
        t.data = static_cast<float*>(t.data) + begin * t.stride[2];
        t.shape[2] = tokens;
        return t;
      };
      const Tensor k20 = Tensor::bshd(swapped.data(), DType::f32, 1, kCacheHeads, 20, kCacheDim);
      ASSERT_EQ(convert(part(rows.k_view, 0, 20), k20).message(), "");
      ASSERT_EQ(cache.append(k20, part(rows.v_view, 0, 20)).message(), "");
      for (std::int64_t i = 20; i < 23; ++i)
        ASSERT_EQ(cache.append(part(rows.k_view, i, 1), part(rows.v_view, i, 1)).message(), "");
      NewRows found(1, 23, 0), expected(1, 23, 0);
      ASSERT_EQ(cache.read(sequence, found.k_view, found.v_view).message(), "");
      // What the library's own conversion or quantization of each row gives.
      for (const auto& [from, to] :
           {std::pair{rows.k_view, expected.k_view}, {rows.v_view, expected.v_view}}) {
        std::vector<std::uint8_t> bytes(23 * kCacheHeads * kCacheDim * size_bytes(dtype));
        const Tensor stored = Tensor::bhsd(bytes.data(), dtype, 1, kCacheHeads, 23, kCacheDim);
        if (!is_8bit(dtype)) {
          ASSERT_EQ(convert(from, stored).message(), "");
          ASSERT_EQ(convert(stored, to).message(), "");
          continue;
        }
        std::vector<float> scales(23 * kCacheHeads);
        QuantizeOptions by_row;
        by_row.granularity = Granularity::row;
        ASSERT_EQ(quantize(from, by_row, stored, scales.data()).message(), "");
        ASSERT_EQ(dequantize(stored, {scales.data(), Granularity::row, 64, {}, 0}, to).message(),
                  "");
      }
      EXPECT_EQ(found.k, expected.k) << name(dtype);
      EXPECT_EQ(found.v, expected.v) << name(dtype);
    }
}

// Every value is within half a step of its group, or a rounding of zero and scale to f16.
TEST(KvCache, Int4RowsComeBackWithinHalfAStep) {
  for (const std::int64_t group : {32, 64})
    for (const PageLayout layout : {PageLayout::bhsd, PageLayout::bshd}) {
      KvCacheOptions o = small_cache();
      o.dtype = DType::int4;
      o.layout = layout;
      o.head_dim = 128;
      o.group = group;
      KvCache cache = KvCache::create(o).value();
      const std::int64_t sequence = cache.add_sequence().value();
      ASSERT_EQ(cache.select({{sequence}}).message(), "");
      constexpr std::int64_t kTokens = 21;
      std::vector<float> k(kCacheHeads * kTokens * 128), v(k), found_k(k), found_v(k);
      const auto view = [](std::vector<float>& x) {
        return Tensor::bhsd(x.data(), DType::f32, 1, kCacheHeads, kTokens, 128);
      };
      ASSERT_TRUE(random_normal(view(k), 1, 1).ok() && random_normal(view(v), 1, 2).ok());
      ASSERT_EQ(cache.append(view(k), view(v)).message(), "");
      ASSERT_EQ(cache.read(sequence, view(found_k), view(found_v)).message(), "");
      for (const auto& [x, y] : {std::pair{&k, &found_k}, {&v, &found_v}})
        for (std::size_t first = 0; first < x->size(); first += static_cast<std::size_t>(group)) {
          const auto begin = x->begin() + static_cast<std::ptrdiff_t>(first);
          const auto [least, most] = std::minmax_element(begin, begin + group);
          const float step = (*most - *least) / 15;
          for (std::size_t i = first; i < first + static_cast<std::size_t>(group); ++i)
            ASSERT_NEAR((*y)[i], (*x)[i], 0.5f * step + 0.01f) << i;
        }
    }
}

// A prompt each, then tokens together: attention over the cache is attention over dense rows.
TEST(KvCache, DecodingEqualsThatOverDenseRows) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t a = sequence_of_length(cache, 30, 1), b = sequence_of_length(cache, 7, 2);
  ASSERT_EQ(cache.select({{b, a}}).message(), "");
  Arguments arguments;
  cache.set_arguments(arguments);
  const Arguments before = arguments;
  for (std::uint64_t step = 0; step < 12; ++step) {
    const NewRows rows(2, 1, 10 + step);
    ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
    cache.set_arguments(arguments);
    // A captured graph holds these addresses.
    EXPECT_EQ(arguments.k.data, before.k.data);
    EXPECT_EQ(arguments.page_table, before.page_table);
    EXPECT_EQ(arguments.seqlens_kv, before.seqlens_kv);
    std::vector<float> q(2 * 4 * kCacheDim), out(q), expected(q);
    const Tensor q_view = Tensor::bhsd(q.data(), DType::f32, 2, 4, 1, kCacheDim);
    ASSERT_TRUE(random_normal(q_view, step, 0).ok());
    arguments.q = q_view;
    arguments.out = Tensor::bhsd(out.data(), DType::f32, 2, 4, 1, kCacheDim);
    ASSERT_EQ(attention(arguments, {.causal = Causal::bottom_right}).message(), "");
    std::int64_t slot = 0;
    for (const std::int64_t sequence : {b, a}) {
      NewRows dense(1, cache.length(sequence).value(), 0);
      ASSERT_EQ(cache.read(sequence, dense.k_view, dense.v_view).message(), "");
      Arguments alone;
      alone.q = Tensor::bhsd(q.data() + slot * 4 * kCacheDim, DType::f32, 1, 4, 1, kCacheDim);
      alone.k = dense.k_view;
      alone.v = dense.v_view;
      alone.out =
          Tensor::bhsd(expected.data() + slot * 4 * kCacheDim, DType::f32, 1, 4, 1, kCacheDim);
      ASSERT_EQ(attention(alone).message(), "");
      ++slot;
    }
    EXPECT_EQ(out, expected);
  }
  EXPECT_EQ(cache.length(a).value(), 42);
  EXPECT_EQ(cache.length(b).value(), 19);
}

TEST(KvCache, AForkSharesPagesUntilOneAppends) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t parent = sequence_of_length(cache, 20, 1);
  EXPECT_EQ(cache.free_pages(), 6);
  const std::int64_t child = cache.fork(parent).value();
  EXPECT_EQ(cache.free_pages(), 6);
  const Tokens prefix = read_tokens(cache, parent);
  EXPECT_EQ(read_tokens(cache, child), prefix);
  // Both append at once: the first takes a copy, and the last keeps the page.
  ASSERT_EQ(cache.select({{parent, child}}).message(), "");
  const NewRows rows(2, 1, 9);
  ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  EXPECT_EQ(cache.free_pages(), 5);
  for (const auto& [sequence, slot] : {std::pair{parent, 0}, {child, 1}}) {
    Tokens expected = prefix;
    expected.push_back(token_of(rows, slot, 0));
    EXPECT_EQ(read_tokens(cache, sequence), expected);
  }
  ASSERT_EQ(cache.free_sequence(parent).message(), "");
  EXPECT_EQ(cache.free_pages(), 6);
  EXPECT_EQ(read_tokens(cache, child).size(), 21U);
  ASSERT_EQ(cache.free_sequence(child).message(), "");
  EXPECT_EQ(cache.free_pages(), 8);
}

// Two forks and their parent need two pages, not three: the last of them keeps the shared one.
TEST(KvCache, ForksThatAppendTogetherNeedOnePageLess) {
  KvCacheOptions o = small_cache();
  o.pages = 4;
  o.pages_per_sequence = 2;
  KvCache cache = KvCache::create(o).value();
  const std::int64_t parent = sequence_of_length(cache, 20, 1);
  const std::int64_t a = cache.fork(parent).value(), b = cache.fork(parent).value();
  ASSERT_EQ(cache.select({{parent, a, b}}).message(), "");
  const NewRows rows(3, 1, 9);
  ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  EXPECT_EQ(cache.free_pages(), 0);
  const NewRows more(3, 12, 9);
  EXPECT_EQ(cache.append(more.k_view, more.v_view).code(), ErrorCode::invalid_argument);
  const NewRows rest(3, 11, 9);
  EXPECT_EQ(cache.append(rest.k_view, rest.v_view).message(), "");
}

// A whole last page is not written again, so it needs no copy.
TEST(KvCache, AForkAtTheEndOfAPageCopiesNothing) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t parent = sequence_of_length(cache, 32, 1);
  const std::int64_t child = cache.fork(parent).value();
  ASSERT_EQ(cache.select({{child}}).message(), "");
  const NewRows rows(1, 1, 9);
  ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  EXPECT_EQ(cache.free_pages(), 5);
  EXPECT_EQ(read_tokens(cache, parent).size(), 32U);
}

TEST(KvCache, AppendsIntoReservedPagesDoNotChangeTheTable) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t parent = sequence_of_length(cache, 10, 1);
  const std::int64_t child = cache.fork(parent).value();
  ASSERT_EQ(cache.select({{child, parent}}).message(), "");
  ASSERT_EQ(cache.reserve(30).message(), "");
  EXPECT_EQ(cache.free_pages(), 2);  // 3 pages each
  Arguments a;
  cache.set_arguments(a);
  EXPECT_EQ(a.seqlens_kv[0], 10);
  const std::vector<std::int32_t> table(a.page_table, a.page_table + 2 * a.page_table_stride);
  for (std::uint64_t step = 0; step < 30; ++step) {
    const NewRows rows(2, 1, step);
    ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  }
  EXPECT_EQ(cache.free_pages(), 2);
  EXPECT_EQ(std::vector<std::int32_t>(a.page_table, a.page_table + table.size()), table);
  EXPECT_EQ(a.seqlens_kv[1], 40);
}

TEST(KvCache, AForkDoesNotShareReservedPages) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t parent = sequence_of_length(cache, 10, 1);
  ASSERT_EQ(cache.reserve(30).message(), "");
  EXPECT_EQ(cache.free_pages(), 5);
  const Tokens prefix = read_tokens(cache, parent);
  const std::int64_t child = cache.fork(parent).value();
  ASSERT_EQ(cache.select({{parent, child}}).message(), "");
  const NewRows rows(2, 10, 9);  // the last four go to another page
  ASSERT_EQ(cache.append(rows.k_view, rows.v_view).message(), "");
  EXPECT_EQ(cache.free_pages(), 3);
  for (const auto& [sequence, slot] : {std::pair{parent, 0}, {child, 1}}) {
    Tokens expected = prefix;
    for (std::int64_t i = 0; i < 10; ++i) expected.push_back(token_of(rows, slot, i));
    EXPECT_EQ(read_tokens(cache, sequence), expected);
  }
}

TEST(KvCache, RotaryEmbeddingsTurnPairsOfChannels) {
  for (const bool interleaved : {false, true}) {
    KvCache cache = KvCache::create(small_cache()).value();
    const std::int64_t sequence = sequence_of_length(cache, 18, 1);  // positions from 18 on
    constexpr std::int64_t kPairs = 5, kPositions = 21;
    std::vector<float> cos(kPairs * kPositions), sin(cos);
    for (std::size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(0.1f * static_cast<float>(i));
      sin[i] = std::sin(0.1f * static_cast<float>(i));
    }
    const NewRows rows(1, 3, 4);
    const Rotary rotary{cos.data(), sin.data(), kPositions, kPairs, interleaved};
    ASSERT_EQ(cache.append(rows.k_view, rows.v_view, rotary).message(), "");
    const Tokens found = read_tokens(cache, sequence);
    for (std::int64_t t = 0; t < 3; ++t) {
      Token expected = token_of(rows, 0, t);
      for (std::int64_t h = 0; h < kCacheHeads; ++h)  // K only
        for (std::int64_t i = 0; i < kPairs; ++i) {
          const auto at = [&](std::int64_t c) -> float& {
            return expected[static_cast<std::size_t>(h * kCacheDim + c)];
          };
          float& x = at(interleaved ? 2 * i : i);
          float& y = at(interleaved ? 2 * i + 1 : kPairs + i);
          const auto angle = static_cast<std::size_t>((18 + t) * kPairs + i);
          const float turned = x * cos[angle] - y * sin[angle];
          y = y * cos[angle] + x * sin[angle];
          x = turned;
        }
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(found[static_cast<std::size_t>(18 + t)][i], expected[i], 1e-6);
    }
  }
}

// Random operations, compared with plain lists of tokens.
TEST(KvCache, RandomOperationsAgreeWithPlainLists) {
  KvCacheOptions o = small_cache();
  o.pages = 12;
  KvCache cache = KvCache::create(o).value();
  std::map<std::int64_t, Tokens> model;
  std::int64_t refused = 0, appended = 0;
  for (std::uint64_t n = 0; n < 400; ++n) {
    const auto draw = [n](std::uint64_t stream, std::uint64_t below) {
      return random_below(77, stream, n, below);
    };
    const auto any = [&]() { return std::next(model.begin(), draw(1, model.size()))->first; };
    const std::uint64_t kind = draw(0, 10);
    if (model.empty() || (kind == 0 && model.size() < 6)) {
      model[cache.add_sequence().value()] = {};
    } else if (kind == 1 && model.size() < 6) {
      const std::int64_t parent = any();
      const Tokens copy = model[parent];
      model[cache.fork(parent).value()] = copy;
    } else if (kind == 2) {
      const std::int64_t gone = any();
      ASSERT_EQ(cache.free_sequence(gone).message(), "");
      model.erase(gone);
    } else {
      std::vector<std::int64_t> batch;
      for (const auto& [sequence, tokens] : model)
        if (batch.size() < 4 && random_below(77, 3, n * 16 + batch.size(), 2) == 0)
          batch.push_back(sequence);
      ASSERT_EQ(cache.select(batch).message(), "");
      const auto tokens = static_cast<std::int64_t>(draw(4, 3) == 0 ? draw(5, 40) : 1);
      const NewRows rows(static_cast<std::int64_t>(batch.size()), tokens, n);
      const std::int64_t free_before = cache.free_pages();
      if (!cache.append(rows.k_view, rows.v_view).ok()) {
        ++refused;
        EXPECT_EQ(cache.free_pages(), free_before);
      } else {
        ++appended;
        for (std::size_t slot = 0; slot < batch.size(); ++slot)
          for (std::int64_t t = 0; t < tokens; ++t)
            model[batch[slot]].push_back(token_of(rows, static_cast<std::int64_t>(slot), t));
      }
    }
    for (const auto& [sequence, tokens] : model)
      ASSERT_EQ(read_tokens(cache, sequence), tokens) << "operation " << n;
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(appended, 100);
  for (const auto& [sequence, tokens] : model)
    ASSERT_EQ(cache.free_sequence(sequence).message(), "");
  EXPECT_EQ(cache.free_pages(), 12);
}

TEST(KvCache, RequestsThatDoNotFitAreRefusedAndChangeNothing) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t a = sequence_of_length(cache, 60, 1), b = sequence_of_length(cache, 40, 2);
  const Tokens before = read_tokens(cache, a);
  EXPECT_EQ(cache.free_pages(), 1);
  ASSERT_EQ(cache.select({{a, b}}).message(), "");
  const auto refused = [&](std::int64_t tokens, ErrorCode code, const char* sentence) {
    const NewRows rows(2, tokens, 3);
    for (const Status& status : {cache.append(rows.k_view, rows.v_view), cache.reserve(tokens)}) {
      EXPECT_EQ(status.code(), code);
      EXPECT_EQ(status.message(), sentence);
    }
    EXPECT_EQ(cache.free_pages(), 1);
    EXPECT_EQ(cache.length(a).value(), 60);
    EXPECT_EQ(cache.length(b).value(), 40);
    EXPECT_EQ(read_tokens(cache, a), before);
  };
  refused(10, ErrorCode::out_of_memory,
          "tokens is 10, which needs 2 pages; supported: what fits into the 1 free pages of 8.");
  refused(21, ErrorCode::invalid_argument,
          "tokens is 21; supported: 0 to 20 for sequence 0, which has 60 of 80.");
  const NewRows fits(2, 4, 3);
  EXPECT_EQ(cache.append(fits.k_view, fits.v_view).message(), "");
}

TEST(KvCache, EveryFaultIsOneSentence) {
  KvCache cache = KvCache::create(small_cache()).value();
  const std::int64_t a = sequence_of_length(cache, 4, 1), b = cache.add_sequence().value();
  ASSERT_EQ(cache.select({{a}}).message(), "");
  const NewRows one(1, 1, 1), two(2, 1, 1), four(1, 4, 1);
  std::uint8_t bytes[kCacheHeads * kCacheDim] = {};
  const Tensor coded = Tensor::bhsd(bytes, DType::int8, 1, kCacheHeads, 1, kCacheDim);
  const std::vector<float> angles(64, 1.0f);
  const auto is = [](const Status& status, const std::string& sentence) {
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << sentence;
    EXPECT_EQ(status.message(), sentence);
  };
  is(cache.select({{7}}), "sequences[0] is 7; supported: sequences of this cache.");
  is(cache.select({{b, -1}}), "sequences[1] is -1; supported: sequences of this cache.");
  is(cache.select({{a, b, a}}), "sequences[2] is 0 again; supported: each sequence once.");
  const std::vector<std::int64_t> many(5, a);
  is(cache.select(many), "sequences is 5 sequences; supported: at most max_batch, here 4.");
  is(cache.fork(9).status(), "sequence is 9; supported: sequences of this cache.");
  is(cache.free_sequence(-3), "sequence is -3; supported: sequences of this cache.");
  is(cache.length(2).status(), "sequence is 2; supported: sequences of this cache.");
  is(cache.reserve(-1), "tokens is -1; supported: 0 or more.");
  is(cache.append(two.k_view, two.v_view),
     "k.shape is (2, 2, 1, 16); supported: (1, 2, 1, 16): (selected sequences, heads, tokens, "
     "head_dim).");
  is(cache.append(one.k_view, four.v_view),
     "v.shape is (1, 2, 4, 16); supported: (1, 2, 1, 16): (selected sequences, heads, tokens, "
     "head_dim).");
  is(cache.append(coded, one.v_view), "k.dtype is int8; supported: f32, f16, bf16.");
  is(cache.append({}, one.v_view),
     "k.shape is (0, 0, 0, 0); supported: (1, 2, 0, 16): (selected "
     "sequences, heads, tokens, head_dim).");
  is(cache.append(one.k_view, one.v_view, {angles.data(), nullptr, 8, 8}),
     "rotary.sin is null; supported: both, or neither.");
  is(cache.append(one.k_view, one.v_view, {angles.data(), angles.data(), 5, 9}),
     "rotary.pairs is 9; supported: 1 to 8, half of head_dim.");
  is(cache.append(one.k_view, one.v_view, {angles.data(), angles.data(), 4, 8}),
     "rotary.positions is 4; supported: 5 or more, the length after this call.");
  is(cache.read(a, one.k_view, one.v_view),
     "k.shape is (1, 2, 1, 16); supported: (1, 2, 4, 16), the rows of sequence 0.");
  is(cache.read(a, four.k_view, four.k_view),
     "v is in memory that k also covers; supported: memory apart from k.");
  EXPECT_EQ(read_tokens(cache, a).size(), 4U);
  EXPECT_EQ(cache.selected(), 1);
  Arguments arguments;
  cache.set_arguments(arguments);
  EXPECT_EQ(arguments.seqlens_kv[0], 4);
  ASSERT_EQ(cache.free_sequence(a).message(), "");
  EXPECT_EQ(cache.selected(), 0);
  EXPECT_EQ(arguments.seqlens_kv[0], 0);
  is(cache.append(one.k_view, one.v_view),
     "k.shape is (1, 2, 1, 16); supported: (0, 2, 1, 16): (selected sequences, heads, tokens, "
     "head_dim).");
  EXPECT_EQ(cache.add_sequence().value(), a);
}

// Rows that append() reads while it writes them, or that read() would write over.
TEST(KvCache, RowsInTheCacheItselfAreRefused) {
  KvCacheOptions o = small_cache();
  o.layout = PageLayout::bshd;
  KvCache cache = KvCache::create(o).value();
  const std::int64_t sequence = sequence_of_length(cache, 20, 1);
  const Tokens before = read_tokens(cache, sequence);
  Arguments a;
  cache.set_arguments(a);
  const auto row_of = [](const ConstTensor& pages, std::int64_t length) {
    Tensor t =
        Tensor::bshd(const_cast<void*>(pages.data), DType::f32, 1, kCacheHeads, length, kCacheDim);
    t.data = static_cast<float*>(t.data) + 5 * kCacheHeads * kCacheDim;
    return t;
  };
  const NewRows one(1, 1, 2), all(1, 20, 2);
  const std::string sentence =
      " is in memory that the cache also covers; supported: memory apart from the cache.";
  EXPECT_EQ(cache.append(row_of(a.k, 1), one.v_view).message(), "k" + sentence);
  EXPECT_EQ(cache.append(one.k_view, row_of(a.k, 1)).message(), "v" + sentence);
  EXPECT_EQ(cache.append(row_of(a.v, 1), one.v_view).message(), "k" + sentence);
  EXPECT_EQ(cache.read(sequence, row_of(a.v, 20), all.v_view).message(), "k" + sentence);
  EXPECT_EQ(cache.read(sequence, all.k_view, row_of(a.k, 20)).message(), "v" + sentence);
  EXPECT_EQ(read_tokens(cache, sequence), before);
}

// It fails before it fills the list of 2^27 pages, which alone would take 1 GB.
TEST(KvCache, ACacheThatIsTooLargeTakesNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers end a program that asks for so much memory";
#endif
  const auto resident_kilobytes = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
  };
  const auto before = resident_kilobytes();
  KvCacheOptions o = small_cache();
  o.pages = 1 << 27;
  o.page_size = 256;
  o.heads = 64;
  o.head_dim = 512;
  EXPECT_EQ(KvCache::create(o).status().code(), ErrorCode::out_of_memory);
  EXPECT_LT(resident_kilobytes(), before + (64 << 10));
}

TEST(KvCache, OptionsAreChecked) {
  using O = KvCacheOptions;
  const auto is = [](const std::function<void(O&)>& plant, const std::string& sentence) {
    O o = small_cache();
    plant(o);
    EXPECT_EQ(KvCache::create(o).status().message(), sentence);
  };
  is([](O& o) { o.pages = 0; }, "pages is 0; supported: 1 to 2147483647.");
  is([](O& o) { o.page_size = 40; },
     "page_size is 40, the page size; supported: multiples of 16 up to 256.");
  is([](O& o) { o.heads = -1; }, "heads is -1; supported: 1 to 2147483647.");
  is([](O& o) { o.head_dim = 0; }, "head_dim is 0; supported: 1 to 2147483647.");
  is([](O& o) { o.max_batch = 0; }, "max_batch is 0; supported: 1 to 2147483647.");
  is([](O& o) { o.dtype = DType::sim8; },
     "dtype is sim8; supported: f32, f16, bf16, e4m3, e5m2, int8, int4.");
  is([](O& o) { o.dtype = DType::int4; },
     "group is 64; supported: 32 or 64, a divisor of the head dimension, here 16.");
  is([](O& o) { o.layout = static_cast<PageLayout>(7); },
     "layout is code 7; supported: bhsd, bshd.");
  is([](O& o) { o.pages_per_sequence = 9; },
     "pages_per_sequence is 9; supported: 0 (as many as possible) to 8.");
  is([](O& o) { o.heads = o.head_dim = o.pages = 2147483647; },
     "pages is 2147483647; supported: at most 2^58 elements in a cache.");
  const Status status = KvCache::create(small_cache(), {Device::Kind::emulator, 90}).status();
  EXPECT_EQ(status.code(), ErrorCode::unsupported);
  O all = small_cache();
  all.pages_per_sequence = 0;
  EXPECT_EQ(KvCache::create(all)->options().pages_per_sequence, 8);
}

}  // namespace
}  // namespace octavo
