// SPDX-License-Identifier: Apache-2.0
// Opens libnvrtc and compiles one kernel instantiation from the embedded sources.
#include "gpu/jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "gpu/driver/shared_library.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/sha256.h"
#include "numeric/fork_safe.h"

namespace octavo {
namespace {

using Program = struct ProgramHandle*;
using Code = int;  // nvrtcResult
constexpr Code kSuccess = 0;
constexpr Code kCompilationFailed = 6;

struct Nvrtc {
  explicit Nvrtc(SymbolLoader& from) : from_(&from) { from_ = nullptr; }

 private:
  SymbolLoader* from_;  // first: the members below are initialised through it; then null

 public:
  // clang-format off
  Code (*version)(int*, int*) = from_->needed("nvrtcVersion");
  const char* (*error_string)(Code) = from_->needed("nvrtcGetErrorString");
  Code (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = from_->needed("nvrtcCreateProgram");
  Code (*destroy)(Program*) = from_->needed("nvrtcDestroyProgram");
  Code (*add_name)(Program, const char*) = from_->needed("nvrtcAddNameExpression");
  Code (*compile)(Program, int, const char* const*) = from_->needed("nvrtcCompileProgram");
  Code (*log_size)(Program, std::size_t*) = from_->needed("nvrtcGetProgramLogSize");
  Code (*log)(Program, char*) = from_->needed("nvrtcGetProgramLog");
  Code (*lowered_name)(Program, const char*, const char**) = from_->needed("nvrtcGetLoweredName");
  Code (*cubin_size)(Program, std::size_t*) = from_->needed("nvrtcGetCUBINSize");
  Code (*cubin)(Program, char*) = from_->needed("nvrtcGetCUBIN");
  Code (*ptx_size)(Program, std::size_t*) = from_->needed("nvrtcGetPTXSize");
  Code (*ptx)(Program, char*) = from_->needed("nvrtcGetPTX");
  // clang-format on
};

struct Opened {
  Nvrtc api;
  std::string version;
};

Status missing(std::string message) { return {ErrorCode::unsupported, std::move(message)}; }

Result<Opened> open_nvrtc() {
  const std::vector<std::string> names =
      toolkit_libraries("OCTAVO_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    SymbolLoader loader([handle](const char* symbol) { return dlsym(handle, symbol); });
    const Nvrtc api(loader);
    if (!loader.missing().empty()) {
      return missing(fmt::format("{} has no {}; supported: NVRTC of CUDA 12 and later.", name,
                                 loader.missing()));
    }
    int major_version = 0, minor_version = 0;
    if (const Code code = api.version(&major_version, &minor_version); code != kSuccess) {
      return missing(
          fmt::format("{} does not return its version: {}.", name, api.error_string(code)));
    }
    return Opened{api, fmt::format("NVRTC {}.{}", major_version, minor_version)};
  }
  return missing(fmt::format(
      "NVRTC, the run-time compiler, cannot be opened ({}{}); set OCTAVO_NVRTC to the library.",
      names.front(), names.size() > 1 ? " and others" : ""));
}

// NVRTC has internal locks. If a process forks while it is compiling, a lock may stay taken forever
// in the child, so the child does not use the compiler.
class Compiler {
 public:
  explicit Compiler(const Compiler* parent)
      : lost_(parent != nullptr && (parent->lost_ || parent->compiling > 0)),
        opened(lost_ ? missing("NVRTC was compiling when this process was forked, and cannot be "
                               "used in it; supported: a fork() while nothing is compiled.")
                     : open_nvrtc()) {}

 private:
  const bool lost_;

 public:
  const Result<Opened> opened;
  std::atomic<int> compiling{0};  // calls in progress
};

Compiler& compiler() {
  static constinit PerProcess<Compiler> of_process;
  return of_process.get();
}

const Result<Opened>& nvrtc() { return compiler().opened; }

class CountedCompilation {
 public:
  CountedCompilation() { ++compiler().compiling; }
  ~CountedCompilation() { --compiler().compiling; }
  CountedCompilation(const CountedCompilation&) = delete;
  CountedCompilation& operator=(const CountedCompilation&) = delete;
};

// NVRTC runs in the caller's thread; wall time would also count other processes.
double thread_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The error lines of a log, at most four, joined into one line.
std::string first_errors(const std::string& log) {
  constexpr int kMost = 4;
  std::istringstream lines(log);
  std::string out, line;
  int count = 0;
  while (count < kMost && std::getline(lines, line)) {
    if (line.find("error") == std::string::npos) continue;
    out += (count++ == 0 ? "" : " | ") + line;
  }
  return out.empty() ? log.substr(0, 400) : out;
}

class Compilation {
 public:
  Compilation(const Nvrtc& api, const ProgramText& source) : api_(api), source_(source) {}
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;
  ~Compilation() {
    if (program_ != nullptr) api_.destroy(&program_);
  }

  Status run() {
    OCTAVO_RETURN_IF_ERROR(create());
    std::vector<const char*> arguments;
    for (const std::string& option : source_.options) arguments.push_back(option.c_str());
    const Code code = api_.compile(program_, static_cast<int>(arguments.size()), arguments.data());
    std::size_t bytes = 0;
    if (api_.log_size(program_, &bytes) == kSuccess && bytes > 1) {
      log_.resize(bytes);
      if (api_.log(program_, log_.data()) != kSuccess) log_.clear();
      log_.resize(std::min(log_.size(), log_.find('\0')));
    }
    if (code == kCompilationFailed) return failure("does not compile: " + first_errors(log_));
    return check(code, "nvrtcCompileProgram");
  }

  Status take(CompiledKernel& kernel) {
    if (!source_.name_expression.empty()) {
      const char* lowered = nullptr;
      OCTAVO_RETURN_IF_ERROR(
          check(api_.lowered_name(program_, source_.name_expression.c_str(), &lowered),
                "nvrtcGetLoweredName"));
      kernel.lowered_name = lowered;
    }
    std::size_t bytes = 0;
    OCTAVO_RETURN_IF_ERROR(check((source_.ptx ? api_.ptx_size : api_.cubin_size)(program_, &bytes),
                                 "nvrtcGetCUBINSize"));
    kernel.image.resize(bytes);
    char* const to = reinterpret_cast<char*>(kernel.image.data());
    OCTAVO_RETURN_IF_ERROR(
        check((source_.ptx ? api_.ptx : api_.cubin)(program_, to), "nvrtcGetCUBIN"));
    kernel.log = std::move(log_);
    return {};
  }

 private:
  Status create() {
    std::vector<const char*> names, texts;
    for (const EmbeddedSource& file : embedded_sources()) {
      names.push_back(file.name);
      texts.push_back(file.text);
    }
    OCTAVO_RETURN_IF_ERROR(
        check(api_.create(&program_, source_.text.c_str(), "kernel.cu",
                          static_cast<int>(names.size()), texts.data(), names.data()),
              "nvrtcCreateProgram"));
    if (source_.name_expression.empty()) return {};
    return check(api_.add_name(program_, source_.name_expression.c_str()),
                 "nvrtcAddNameExpression");
  }
  Status check(Code code, std::string_view call) const {
    if (code == kSuccess) return {};
    return failure(
        fmt::format("cannot be compiled: {} failed with {}.", call, api_.error_string(code)));
  }
  Status failure(const std::string& what) const {
    return {ErrorCode::device_error,
            fmt::format("{} {}",
                        source_.name_expression.empty() ? "The program" : source_.name_expression,
                        what)};
  }

  const Nvrtc& api_;
  const ProgramText& source_;
  Program program_ = nullptr;
  std::string log_;
};

}  // namespace

Result<std::string> nvrtc_version() {
  if (!nvrtc().ok()) return nvrtc().status();
  return nvrtc()->version;
}

std::vector<std::string> nvrtc_options(int arch, bool ptx) {
  // No -lineinfo: it embeds the PTX and makes a cubin four times as large. -default-device allows
  // unannotated constexpr functions and lambdas. NVRTC lacks __builtin_huge_valf.
  return {"-std=c++20", "-default-device",
          "-D__builtin_huge_valf()=__builtin_bit_cast(float,0x7f800000)",
          ptx ? fmt::format("--gpu-architecture=compute_{}", arch)
              : fmt::format("--gpu-architecture=sm_{}{}", arch, arch == 90 ? "a" : ""),
          "--ptxas-options=-v"};
}

Result<CompiledKernel> compile(const KernelSource& source) {
  if (find_embedded_source(source.include) == nullptr) {
    return invalid("kernel source", "'" + source.include + "'", "the files of src/device");
  }
  if (source.arch != 80 && source.arch != 89 && source.arch != 90) {
    return invalid("arch", std::to_string(source.arch), "80, 89, 90");
  }
  ProgramText program;
  // The text form of a configuration assumes namespace octavo.
  program.text = fmt::format("#include \"{}\"\nusing namespace octavo;\n", source.include);
  program.name_expression = source.name_expression;
  program.options = nvrtc_options(source.arch, source.ptx);
  program.ptx = source.ptx;
  Result<CompiledKernel> kernel = compile(program);
  if (kernel.ok()) kernel->arch = source.arch;
  return kernel;
}

Result<CompiledKernel> compile(const ProgramText& program) {
  if (!nvrtc().ok()) return nvrtc().status();
  const CountedCompilation counted;
  const double start_ms = thread_cpu_ms();
  CompiledKernel kernel;
  Compilation compilation(nvrtc()->api, program);
  OCTAVO_RETURN_IF_ERROR(compilation.run());
  OCTAVO_RETURN_IF_ERROR(compilation.take(kernel));
  kernel.compile_ms = thread_cpu_ms() - start_ms;
  kernel.name_expression = program.name_expression;
  kernel.options = fmt::format("{}", fmt::join(program.options, " "));
  kernel.compiler = nvrtc()->version;
  kernel.ptx = program.ptx;
  kernel.sha256 = sha256_hex(kernel.image);
  return kernel;
}

}  // namespace octavo
