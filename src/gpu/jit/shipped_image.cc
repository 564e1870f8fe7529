// SPDX-License-Identifier: Apache-2.0
// The archive of shipped kernels, placed in the library by the assembler.
#include <cstddef>

#include "gpu/jit/kernel_archive.h"

#if defined(OCTAVO_KERNEL_ARCHIVE)
// Read-only data between two symbols, which are hidden because a process may load two copies of the
// library.
__asm__(
    ".pushsection .rodata.octavo_kernels, \"a\"\n"
    ".balign 64\n"
    ".hidden octavo_kernels_begin\n"
    ".globl octavo_kernels_begin\n"
    "octavo_kernels_begin:\n"
    ".incbin \"" OCTAVO_KERNEL_ARCHIVE
    "\"\n"
    ".hidden octavo_kernels_end\n"
    ".globl octavo_kernels_end\n"
    "octavo_kernels_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C"
    [[gnu::visibility("hidden")]] const std::byte kKernelsBegin[] __asm__("octavo_kernels_begin");
extern "C"
    [[gnu::visibility("hidden")]] const std::byte kKernelsEnd[] __asm__("octavo_kernels_end");
#endif

namespace octavo::detail {

std::span<const std::byte> embedded_archive_bytes() {
#if defined(OCTAVO_KERNEL_ARCHIVE)
  return {kKernelsBegin, kKernelsEnd};
#else
  return {};
#endif
}

}  // namespace octavo::detail
