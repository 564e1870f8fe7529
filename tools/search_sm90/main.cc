// SPDX-License-Identifier: Apache-2.0
// Makes the table of Hopper forward kernels, in two steps, or three.
//
//   search_sm90 measure f16 TIMES.csv [HEAD_DIM ...] [--known OTHER.csv]
//                                          times configurations on the first GPU, over shapes;
//                                          e4m3: those of FP8 with scores in FP16; int8: those
//                                          of 8 bits with scores in FP32; of those that OTHER.csv
//                                          has, only the table's
//   search_sm90 again f16 OTHER.csv TIMES.csv [HEAD_DIM ...]
//                                          of what OTHER.csv has, the best of each shape and the
//                                          table's once more, in turn and under a load that lasts;
//                                          for shapes that it lacks all it has
//   search_sm90 shape BATCH HEADS LENGTH HEAD_DIM
//                                          every configuration in FP16 at one shape: what is the
//                                          best of all beside the table's choice
//   search_sm90 fit TIMES.csv HEADER       needs no GPU: fits the cost model of
//                                          gpu/forward/sm90_forward.h to each configuration, takes
//                                          those that serve some shape best, and writes their rows
//                                          into HEADER (src/config/sm90_shipped.h)
//
// Shapes that no row was fitted to are timed as well: the new table's choice for them is compared
// with the best of all.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "times.h"

namespace octavo {
namespace {

Status search(int argc, char** argv) {
  const std::string_view step = argc > 1 ? argv[1] : "";
  const std::string_view format = argc > 2 ? argv[2] : "";
  const Element element = format == "f16"    ? Element::f16
                          : format == "int8" ? Element::int8
                                             : Element::e4m3;
  const bool is_known = format == "f16" || format == "e4m3" || format == "int8";
  const bool again = step == "again";
  if ((step == "measure" && argc >= 4 && is_known) || (again && argc >= 5 && is_known)) {
    std::vector<int> head_dims;
    const char* known = nullptr;
    for (int i = again ? 5 : 4; i < argc; ++i) {
      if (!again && argv[i] == std::string_view("--known") && i + 1 < argc)
        known = argv[++i];
      else
        head_dims.push_back(std::atoi(argv[i]));
    }
    if (head_dims.empty())
      head_dims.assign(std::begin(search_sm90::kHeadDims), std::end(search_sm90::kHeadDims));
    return again ? search_sm90::measure_again(element, head_dims, argv[3], argv[4])
                 : search_sm90::measure(element, head_dims, argv[3], known);
  }
  if (step == "shape" && argc == 6) {
    Problem p = search_sm90::problem_of(std::atoi(argv[3]), std::atoi(argv[4]), Causal::none,
                                        std::atoi(argv[5]));
    p.batch = std::atoi(argv[2]);
    return search_sm90::compare_choice(p);
  }
  if (step == "fit" && argc == 4) return search_sm90::fit_table(argv[2], argv[3]);
  return Status(
      ErrorCode::invalid_argument,
      "usage: search_sm90 measure f16|e4m3|int8 TIMES.csv [HEAD_DIM ...] [--known OTHER.csv] | "
      "search_sm90 again f16|e4m3|int8 OTHER.csv TIMES.csv [HEAD_DIM ...] | "
      "search_sm90 shape BATCH HEADS LENGTH HEAD_DIM | search_sm90 fit TIMES.csv HEADER");
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  const octavo::Status status = octavo::search(argc, argv);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
