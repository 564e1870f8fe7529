// The environment variable that forces a kernel family: sm_90 also runs the sm80 family, which must
// be measurable there.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo {

enum class KernelFamily : std::uint8_t { sm80, sm90 };

// The value of $OCTAVO_KERNELS; none if it is unset or empty, and the problem and the chip decide.
// Read for every plan.
Result<std::optional<KernelFamily>> forced_kernel_family();
bool is_forced(KernelFamily family);

// The error if the sm90 family is forced but does not support the problem; `what` ends the message:
// "for rows aligned to 8 bytes".
Status no_other_family(std::string_view what);

}  // namespace octavo
