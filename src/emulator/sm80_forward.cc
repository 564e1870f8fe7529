#include "emulator/sm80_forward.h"

#include "emulator/sm80_forward_table.h"

namespace octavo::emulator {
namespace {

template <int... kPart>
std::vector<EmulatedSm80Forward> all_parts(std::integer_sequence<int, kPart...>) {
  std::vector<EmulatedSm80Forward> all;
  const auto append = [&all](const std::vector<EmulatedSm80Forward>& part) {
    all.insert(all.end(), part.begin(), part.end());
  };
  (append(sm80_forward_part<kPart>()), ...);
  return all;
}

}  // namespace

const std::vector<EmulatedSm80Forward>& sm80_forward_kernels() {
  static const std::vector<EmulatedSm80Forward> kernels =
      all_parts(std::make_integer_sequence<int, OCTAVO_PARTS>());
  return kernels;
}

}  // namespace octavo::emulator
