// Makes the table of Hopper forward kernels, in two steps.
//
//   search_sm90 measure TIMES.csv          times configurations on the first GPU, over shapes
//   search_sm90 fit TIMES.csv HEADER       needs no GPU: fits the cost model of
//                                          gpu/choose_sm90_forward.h to each configuration, takes
//                                          those that serve some shape best, and writes their rows
//                                          into HEADER (src/config/sm90_shipped.h)
//
// Shapes that no row was fitted to are timed as well: what the new table takes for them is held
// against the best of all.
#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "times.h"

namespace octavo {
namespace {

Status search(int argc, char** argv) {
  const std::string_view step = argc > 1 ? argv[1] : "";
  if (step == "measure" && argc == 3) return search_sm90::measure(argv[2]);
  if (step == "fit" && argc == 4) return search_sm90::fit_table(argv[2], argv[3]);
  return Status(ErrorCode::invalid_argument,
                "usage: search_sm90 measure TIMES.csv | search_sm90 fit TIMES.csv HEADER");
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  const octavo::Status status = octavo::search(argc, argv);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
