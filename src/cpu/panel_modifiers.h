// SPDX-License-Identifier: Apache-2.0
// Prepares the modifiers of a panel's tiles (softcap, bias, ALiBi, mask tensor, block mask and
// draft tree) in the form that Kernels::modify_scores reads.
#pragma once

#include <cstdint>

#include "attention/block_mask.h"
#include "cpu/kernels.h"
#include "cpu/task.h"

namespace octavo::cpu {

// The scratch of a task for modifiers. Pointers of modifiers that the problem does not have are
// null.
struct ModifierScratch {
  float* addition;  // [key][lane] of one tile: bias, and -infinity where a mask hides the key
  float* row;       // of it, one lane
  float* slope;     // per lane, from here on
  float* diagonal;
};

// The scratch for `width` lanes and a block of keys; take(n) returns n floats.
template <class Take>
ModifierScratch carve_modifiers(bool has_additions, bool has_alibi, std::int64_t width,
                                const Take& take) {
  ModifierScratch s{};
  if (has_additions) {
    s.addition = take(kKeyRows * width);
    s.row = take(round_up(kKeyRows, kRowPadding));
  }
  if (has_alibi) {
    s.slope = take(width);
    s.diagonal = take(width);
  }
  return s;
}

class PanelModifiers {
 public:
  PanelModifiers(const Kernels& kernels, const Problem& problem, const Arguments& arguments,
                 const Task& task, const ModifierScratch& scratch)
      : kernels_(kernels), problem_(problem), a_(arguments), task_(task), s_(scratch) {}

  // Loads the modifiers of keys [begin, begin + count), at most a block of keys, for the panel with
  // queries [first_query, first_query + rows). Returns false if bias and masks hide all of these
  // keys from every query.
  bool load(std::int64_t first_query, std::int64_t rows, std::int64_t width, std::int64_t begin,
            std::int64_t count, TileModifiers& tile) const;

  // Whether one of the task's queries [first_query, first_query + rows) sees the block of kKeyRows
  // keys that holds `key`, according to the block mask. True without a block mask.
  bool sees_block(std::int64_t first_query, std::int64_t rows, std::int64_t key) const;

 private:
  void load_alibi(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                  std::int64_t begin, TileModifiers& tile) const;
  bool load_additions(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                      std::int64_t begin, std::int64_t count) const;
  bool load_row(std::int64_t bias_at, std::int64_t mask_at, std::int64_t count) const;
  SeenBlock seen_block(const QueryRow& query, std::int64_t key) const;
  bool hide_blocks(const QueryRow& query, std::int64_t begin, std::int64_t count) const;
  bool hide_drafts(const QueryRow& query, std::int64_t begin, std::int64_t count) const;

  const Kernels& kernels_;
  const Problem& problem_;
  const Arguments& a_;
  const Task& task_;
  const ModifierScratch s_;
};

}  // namespace octavo::cpu
