// Which configurations might be worth it.
#include <array>

#include "times.h"

namespace octavo::search_sm90 {
namespace {

// Rows of registers and shared memory that do not fit, or spill, drop out later.
Rows candidates_16_bit(int head_dim) {
  Rows rows;
  for (const int warpgroups : {2, 3, 4})
    for (const int block_n : {64, 80, 96, 112, 128})
      for (const int stages : {2, 3, 4, 6})
        for (const bool own_o : {true, false})
          for (const bool ones : {true, false}) {
            if (ones == (head_dim == 256)) continue;  // the sums by ones won wherever there is room
            if (stages * block_n > 384 || (stages == 3 && block_n < 128)) continue;
            if (stages == 4 && block_n > 64) continue;
            rows.push_back({head_dim, warpgroups, block_n, stages, 0, 0, true, false, own_o, ones,
                            1, 1, 0, 0, 0});
          }
  // P V first: won at 64 columns, and not with O stored through shared memory.
  for (const int warpgroups : {2, 3, 4})
    for (const auto& [block_n, stages] :
         {std::array{64, 2}, {64, 4}, {80, 3}, {96, 2}, {96, 3}, {128, 2}})
      for (const bool scores_behind : {true, false})
        rows.push_back({head_dim, warpgroups, block_n, stages, 0, 0, false, scores_behind, false,
                        head_dim != 256, 1, 1, 0, 0, 0});
  for (const auto& [warpgroups, row_groups] : {std::array{1, 1}, {2, 1}, {2, 2}, {4, 1}})
    for (const auto& [block_n, stages] : {std::array{256, 1}, {128, 1}, {128, 2}, {64, 2}})
      for (const int cluster : {1, 2})
        for (const bool overlap : {true, false})
          for (const bool ones : {true, false}) {
            if (overlap && block_n == 256) continue;
            if (ones && head_dim == 256) continue;
            rows.push_back({head_dim, warpgroups, block_n, stages, row_groups, cluster, overlap,
                            false, false, ones, 1, 1, 0, 0, 0});
          }
  return rows;
}

bool in_halves(const Group& group) {
  return group.scores == sm90::Scores8Bit::f16 || group.scores == sm90::Scores8Bit::f16_codes;
}

// More buffers of keys: at 64 columns up to 4% under a mask, of INT8 1 to 2% without; at 128 and
// 256 within 1%. Six of FP8 cost where tiles are one wave: (2,8,2048) takes 27.9 us with two, 28.1
// with three and 28.9 with six.
void add_stages(sm90::TableRow row, Rows& rows) {
  if (row.head_dim != 64 || row.cluster > 0 || row.overlap) return;
  const bool bytes = row.scores == sm90::Scores8Bit::bytes;
  const int before = row.stages;
  for (const int stages : {3, 6}) {
    row.stages = stages;
    const bool tried = bytes || (in_halves({row.head_dim, row.scores}) && stages == 3);
    if (stages > before && tried && is_wanted(row)) rows.push_back(row);
  }
}

// What is folded at once: as many columns as registers hold, or fewer, as the compiler may need
// more of them than are foreseen; fewer still where columns are many or an SM is to hold several
// CTAs.
Rows candidates_8_bit(const Group& group) {
  using sm90::Scores8Bit;
  const int head_dim = group.head_dim;
  const bool bytes = group.scores == Scores8Bit::bytes;
  const bool halves = in_halves(group);
  Rows rows;
  const auto add = [&](sm90::TableRow row) {
    int folds = 0;
    for (const int fold : {192, 128, 96, 64, 32, 16}) {
      if (head_dim % fold != 0) continue;
      row.fold_columns = fold;
      row.scores = group.scores;
      row.ones = halves;
      if (!is_wanted(row)) continue;
      rows.push_back(row);
      if (folds == 0) add_stages(row, rows);
      if (++folds == 2 && head_dim < 256 && row.ctas == 1) break;
    }
  };
  const auto add_each_way = [&](sm90::TableRow row) {
    for (const int fold_buffers : {1, 2})
      for (const bool scores_behind : {false, true}) {
        row.fold_buffers = fold_buffers;
        row.scores_behind = scores_behind;
        add(row);
      }
  };
  for (const int warpgroups : {2, 3, 4})
    for (const int block_n : {64, 96, 128, 160, 192, 224, 256})
      for (const bool overlap : {true, false}) {
        const bool large = block_n > sm90::kMostFoldedKeys;
        if (large && (!bytes || overlap)) continue;
        // 2% or more behind, when last timed.
        if (warpgroups == 2 && head_dim == 64 && !large) continue;
        const sm90::TableRow row{head_dim, warpgroups, block_n, block_n < 128 ? 4 : 2,
                                 0,        0,          overlap, false,
                                 false,    false,      1,       1,
                                 0,        0,          0};
        if (overlap || (block_n < 96 && halves))
          add(row);
        else
          add_each_way(row);
      }
  for (const int cluster : {1, 2}) {
    const auto add_split = [&](int warpgroups, int row_groups, int block_n, int stages, int ctas) {
      for (const bool scores_behind : {false, true}) {
        // There is one block mostly.
        if (scores_behind && (block_n != 128 || cluster > 1)) continue;
        const int fold_buffers =
            block_n > sm90::kMostFoldedKeys ? 2 : 1;  // each half of the keys has one
        add({head_dim, warpgroups, block_n, stages, row_groups, cluster, false, scores_behind,
             false, false, 1, 1, 0, 0, 0, 0, fold_buffers, group.scores, ctas});
      }
    };
    for (const auto& [block_n, stages] : {std::array{128, 1}, {128, 2}, {64, 2}}) {
      add_split(1, 1, block_n, stages, 1);
      // More CTAs an SM than registers would have it, for grids that just fill so many.
      if (cluster == 1) add_split(1, 1, block_n, stages, 4);
    }
    if (cluster == 1) add_split(1, 1, 128, 2, 3);
    add_split(2, 1, 128, 1, 1);
    add_split(2, 1, 160, 1, 1);
    add_split(1, 1, 256, 1, 1);
    add_split(2, 1, 256, 1, 1);
    add_split(4, 1, 128, 1, 1);
    add_split(2, 2, 128, 1, 1);
  }
  return rows;
}

}  // namespace

Rows candidates(Element element, const Group& group) {
  if (element != Element::f16) return candidates_8_bit(group);
  Rows rows;
  for (const sm90::TableRow& row : candidates_16_bit(group.head_dim))
    if (is_wanted(row)) rows.push_back(row);
  return rows;
}

}  // namespace octavo::search_sm90
