// A plan's launches of the Hopper kernel, each thread's kept: the next one with the same shapes,
// strides and scale is the last one with other addresses, and nothing else is computed for it.
#pragma once

#include <cstdint>

#include "gpu/launch_sm90_forward.h"

namespace octavo {

class RepeatedSm90Forward {
 public:
  RepeatedSm90Forward();
  RepeatedSm90Forward(const RepeatedSm90Forward&) = delete;
  RepeatedSm90Forward& operator=(const RepeatedSm90Forward&) = delete;

  // `arguments` are validated, pose the problem, and TMA reaches them.
  Status launch(const Gpu& gpu, const LoadedSm90Forward& kernel, const Problem& run_problem,
                const Arguments& arguments, Stream stream) const;

  // Nothing: they differ in more than addresses from the last ones, or need a closer look. `status`
  // says how the launch went, if there was one.
  bool launch_again(const Gpu& gpu, const Arguments& arguments, Stream stream,
                    Status& status) const;

 private:
  const std::uint64_t plan_;  // of no other plan, ever
};

}  // namespace octavo
