// SPDX-License-Identifier: Apache-2.0
// A fake run-time compiler with a fixed result: empty PTX, or a cubin whose one kernel has no
// instruction.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

namespace {

std::atomic<bool> held = false;
std::atomic<int> compiling = 0;

constexpr char kPtx[] = "// PTX of nothing\n";

struct SectionHeader {
  std::uint32_t name = 0, type = 0;
  std::uint64_t flags = 0, address = 0, offset = 0, bytes = 0;
  std::uint32_t link = 0, info = 0;
  std::uint64_t alignment = 0, entry_bytes = 0;
};
// The parts of an ELF file that the library reads: sections and their names.
struct Cubin {
  unsigned char identity[16] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  std::uint16_t type = 2, machine = 190;
  std::uint32_t version = 1;
  std::uint64_t entry = 0, program_headers = 0, section_headers = offsetof(Cubin, sections);
  std::uint32_t flags = 90;
  std::uint16_t header_bytes = 64, program_header_bytes = 0, program_header_count = 0,
                section_header_bytes = sizeof(SectionHeader), section_count = 3, names_index = 1;
  SectionHeader sections[3] = {
      {},
      {.name = 1, .type = 3, .offset = offsetof(Cubin, names), .bytes = sizeof(names)},
      {.name = 11, .type = 1, .offset = offsetof(Cubin, names)}};
  char names[24] = "\0.shstrtab\0.text.kernel";
};
static_assert(offsetof(Cubin, sections) == 64 && sizeof(SectionHeader) == 64);

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int nvrtcVersion(int* major, int* minor) { return *major = 99, *minor = 1, 0; }
const char* nvrtcGetErrorString(int) { return "an error"; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  static char object;
  return *program = &object, 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcAddNameExpression(void*, const char*) { return 0; }
// While a test holds it, the compiler does not return, as if one of its own locks were taken.
void fake_nvrtc_hold(int hold) { held = hold != 0; }
int fake_nvrtc_compiling() { return compiling; }
int nvrtcCompileProgram(void*, int, const char* const*) {
  ++compiling;
  while (held) std::this_thread::yield();
  return --compiling, 0;
}
int nvrtcGetLoweredName(void*, const char*, const char** name) { return *name = "kernel", 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return *bytes = 0, 0; }
int nvrtcGetProgramLog(void*, char*) { return 0; }
int nvrtcGetCUBINSize(void*, std::size_t* bytes) { return *bytes = sizeof(Cubin), 0; }
int nvrtcGetCUBIN(void*, char* to) {
  const Cubin cubin;
  return std::memcpy(to, &cubin, sizeof cubin), 0;
}
int nvrtcGetPTXSize(void*, std::size_t* bytes) { return *bytes = sizeof(kPtx), 0; }
int nvrtcGetPTX(void*, char* to) { return std::memcpy(to, kPtx, sizeof(kPtx)), 0; }

#pragma GCC visibility pop
}
