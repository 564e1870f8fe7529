#include "gpu/jit/kernel_family.h"

#include <cstdlib>
#include <string_view>

#include "attention/error.h"

namespace octavo {

Result<std::optional<KernelFamily>> forced_kernel_family() {
  const char* const value = std::getenv("OCTAVO_KERNELS");
  const std::string_view named = value == nullptr ? "" : value;
  if (named.empty()) return std::optional<KernelFamily>();
  if (named == "sm80") return std::optional(KernelFamily::sm80);
  if (named == "sm90") return std::optional(KernelFamily::sm90);
  return invalid("OCTAVO_KERNELS", fmt::format("'{}'", named), "sm80, sm90, or nothing");
}

bool is_forced(KernelFamily wanted) {
  const Result<std::optional<KernelFamily>> family = forced_kernel_family();
  return family.ok() && *family == wanted;
}

Status no_other_family(std::string_view what) {
  return unsupported("OCTAVO_KERNELS", "'sm90'", fmt::format("sm80, or nothing, {}", what));
}

}  // namespace octavo
