// A run-time compiler that makes the same PTX of everything, at once; it makes no cubins.
#include <cstddef>
#include <cstring>

namespace {

constexpr char kPtx[] = "// PTX of nothing\n";
constexpr int kInvalidInput = 3;

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
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetLoweredName(void*, const char*, const char** name) { return *name = "kernel", 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return *bytes = 0, 0; }
int nvrtcGetProgramLog(void*, char*) { return 0; }
int nvrtcGetCUBINSize(void*, std::size_t*) { return kInvalidInput; }
int nvrtcGetCUBIN(void*, char*) { return kInvalidInput; }
int nvrtcGetPTXSize(void*, std::size_t* bytes) { return *bytes = sizeof(kPtx), 0; }
int nvrtcGetPTX(void*, char* to) { return std::memcpy(to, kPtx, sizeof(kPtx)), 0; }

#pragma GCC visibility pop
}
