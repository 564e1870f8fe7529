// Prepares the modifiers of a panel's tiles (softcap, bias, ALiBi and the mask tensor) in the form
// that Kernels::modify_scores reads.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/task.h"

namespace octavo::cpu {

// Scratch of a task; null where the problem has no such modifier.
struct ModifierScratch {
  float* addition;  // [key][lane] of one tile: bias, and -infinity where the mask hides the key
  float* row;       // of it, one lane
  float* slope;     // per lane, from here on
  float* diagonal;
};

class PanelModifiers {
 public:
  PanelModifiers(const TaskContext& context, const Task& task, const ModifierScratch& scratch)
      : c_(context), task_(task), s_(scratch) {}

  // The keys [begin, begin + count) of the panel with queries [first_query, first_query + rows),
  // at most a block of keys. Returns false if bias and mask hide all of them from every query.
  bool load(std::int64_t first_query, std::int64_t rows, std::int64_t width, std::int64_t begin,
            std::int64_t count, TileModifiers& tile) const;

 private:
  void load_alibi(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                  std::int64_t begin, TileModifiers& tile) const;
  bool load_additions(std::int64_t first_query, std::int64_t rows, std::int64_t width,
                      std::int64_t begin, std::int64_t count) const;
  bool load_row(std::int64_t bias_at, std::int64_t mask_at, std::int64_t count) const;

  const TaskContext& c_;
  const Task& task_;
  const ModifierScratch s_;
};

}  // namespace octavo::cpu
