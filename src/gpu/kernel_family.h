// Which family of kernels a plan may take: a chip that has newer ones also runs the older, and who
// measures those must be able to say so.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo {

enum class KernelFamily : std::uint8_t { sm80, sm90 };

// What $OCTAVO_KERNELS names; none if it is unset or empty, which leaves the choice to the problem
// and the chip. Read at every plan.
Result<std::optional<KernelFamily>> forced_kernel_family();
bool is_forced(KernelFamily family);

// That the sm90 family is forced and does not serve `what`: "for rows aligned to 8 bytes".
Status no_other_family(std::string_view what);

}  // namespace octavo
