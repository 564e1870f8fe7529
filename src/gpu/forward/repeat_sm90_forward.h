// Each thread keeps the last launch of a plan's Hopper kernel. A call with the same shapes, strides
// and scale only replaces the addresses in it.
#pragma once

#include <cstdint>

#include "gpu/forward/launch_sm90_forward.h"

namespace octavo {

class RepeatedSm90Forward {
 public:
  RepeatedSm90Forward();
  RepeatedSm90Forward(const RepeatedSm90Forward&) = delete;
  RepeatedSm90Forward& operator=(const RepeatedSm90Forward&) = delete;

  // `arguments` must be validated, match `run_problem`, and be addressable by TMA.
  Status launch(const Gpu& gpu, const LoadedSm90Forward& kernel, const Problem& run_problem,
                const Arguments& arguments, Stream stream) const;

  // Returns false if the arguments differ from the last ones in more than addresses, or need full
  // validation. Otherwise `status` is the result of the launch.
  bool launch_again(const Gpu& gpu, const Arguments& arguments, Stream stream,
                    Status& status) const;

 private:
  const std::uint64_t plan_;  // a number that no other plan of the process has
};

}  // namespace octavo
