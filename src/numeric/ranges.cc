// From values to scales: amax of each group, and the search for the least squared error.
#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

// A box of rows that holds its groups whole: one group, or one per column.
struct Box {
  std::int64_t b_begin, b_end, h_begin, h_end, s_begin, s_end;
};

// In the order of the scale array, so that a visitor may append what it finds.
template <class Visit>
void for_each_box(const ConstTensor& x, const QuantizeOptions& options, Visit visit) {
  const auto [batch, heads, rows, columns] = x.shape;
  if (options.granularity == Granularity::tensor) return visit(Box{0, batch, 0, heads, 0, rows});
  const bool whole_head =
      options.granularity == Granularity::head || options.granularity == Granularity::channel;
  std::int64_t height = options.granularity == Granularity::row ? 1 : options.block_rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      if (whole_head) {
        visit(Box{b, b + 1, h, h + 1, 0, rows});
        continue;
      }
      height = std::min(height, rows);  // so that s + height cannot overflow
      for (std::int64_t s = 0; s < rows; s += height)
        visit(Box{b, b + 1, h, h + 1, s, std::min(s + height, rows)});
    }
  }
}

// Rows of a box as they are quantized.
template <class Visit>
void for_each_row(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  const Box& box, std::span<float> row, Visit visit) {
  for (std::int64_t b = box.b_begin; b < box.b_end; ++b) {
    for (std::int64_t h = box.h_begin; h < box.h_end; ++h) {
      const float* head_mean = mean ? mean + (b * x.shape[1] + h) * x.shape[3] : nullptr;
      const RowTransform transform{head_mean, options.hadamard};
      for (std::int64_t s = box.s_begin; s < box.s_end; ++s) {
        load_row(x, b, h, s, row.data());
        transform.apply(row.data(), x.shape[3]);
        visit();
      }
    }
  }
}

// Magnitudes as integers: for finite floats the order is the same, and the loop is one that
// compilers vectorize.
std::uint32_t finite_magnitude(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF;
  return bits < kF32Infinity ? bits : 0;
}

// One group where amax holds one number, else one per column.
void widen(std::span<const float> row, std::span<float> amax) {
  if (amax.size() == 1) {
    std::uint32_t largest_bits = std::bit_cast<std::uint32_t>(amax[0]);
    for (const float x : row) largest_bits = std::max(largest_bits, finite_magnitude(x));
    amax[0] = std::bit_cast<float>(largest_bits);
    return;
  }
  for (std::size_t c = 0; c < row.size(); ++c)
    amax[c] = std::max(amax[c], std::bit_cast<float>(finite_magnitude(row[c])));
}

struct Candidate {
  float scale, step, inverse;
  double squared_error;
};

class LeastSquares {
 public:
  LeastSquares(DType format, std::size_t groups)
      : format_(format), candidates_(groups * kLeastSquaresCandidates) {}

  void start(std::span<const float> amax) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const float range = amax[i / kLeastSquaresCandidates] *
                          least_squares_ratio(static_cast<int>(i % kLeastSquaresCandidates));
      const float scale = scale_from_amax(format_, range);
      const float step = step_of(format_, scale);
      candidates_[i] = {scale, step, 1.0f / step, 0.0};
    }
  }

  void add(std::span<const float> row, std::size_t groups) {
    const std::array<float, 256>& table = decode_table(format_);
    for (std::size_t c = 0; c < row.size(); ++c) {
      const float x = row[c];
      if (finite_magnitude(x) == 0) continue;  // zero has no error; the rest has no say
      for (Candidate& candidate : group(groups == 1 ? 0 : c)) {
        const float back = table[encode_8bit(format_, x * candidate.inverse)] * candidate.step;
        const double error = static_cast<double>(x) - static_cast<double>(back);
        candidate.squared_error += error * error;
      }
    }
  }

  float best(std::size_t g) {
    const std::span<Candidate> all = group(g);
    return std::min_element(all.begin(), all.end(),
                            [](const Candidate& a, const Candidate& b) {
                              return a.squared_error < b.squared_error;
                            })
        ->scale;
  }

 private:
  std::span<Candidate> group(std::size_t g) {
    return std::span(candidates_).subspan(g * kLeastSquaresCandidates, kLeastSquaresCandidates);
  }

  DType format_;
  std::vector<Candidate> candidates_;
};

}  // namespace

void compute_amax(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  float* amax) {
  const auto columns = static_cast<std::size_t>(x.shape[3]);
  const std::size_t groups = options.granularity == Granularity::channel ? columns : 1;
  std::vector<float> row(columns);
  for_each_box(x, options, [&](const Box& box) {
    const std::span<float> box_amax(amax, groups);
    std::fill(box_amax.begin(), box_amax.end(), 0.0f);
    for_each_row(x, options, mean, box, row, [&] { widen(row, box_amax); });
    amax += groups;
  });
}

void compute_scales(const ConstTensor& x, DType format, const QuantizeOptions& options,
                    const float* mean, float* scales) {
  const auto columns = static_cast<std::size_t>(x.shape[3]);
  const std::size_t groups = options.granularity == Granularity::channel ? columns : 1;
  if (options.rule == ScaleRule::amax) {
    compute_amax(x, options, mean, scales);
    const std::int64_t count = scale_count(x.shape, options.granularity, options.block_rows);
    for (std::int64_t i = 0; i < count; ++i) scales[i] = scale_from_amax(format, scales[i]);
    return;
  }
  std::vector<float> row(columns);
  std::vector<float> amax(groups);
  LeastSquares search(format, groups);
  for_each_box(x, options, [&](const Box& box) {
    std::fill(amax.begin(), amax.end(), 0.0f);
    for_each_row(x, options, mean, box, row, [&] { widen(row, amax); });
    search.start(amax);
    for_each_row(x, options, mean, box, row, [&] { search.add(row, groups); });
    for (std::size_t g = 0; g < groups; ++g) *scales++ = search.best(g);
  });
}

}  // namespace octavo
