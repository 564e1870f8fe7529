// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/host_kernel.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"
#include "octavo/file.hpp"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evolve {
namespace {

constexpr char kEntry[] = "octavo_candidate_kernel";

bool is_program(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

bool on_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return is_program(program);
  const char* const value = std::getenv("PATH");
  std::string_view path = value == nullptr ? "" : value;
  while (!path.empty()) {
    const std::size_t end = path.find(':');
    if (is_program(fmt::format("{}/{}", path.substr(0, end), program))) return true;
    path.remove_prefix(end == std::string_view::npos ? path.size() : end + 1);
  }
  return false;
}

// The translation unit. A kernel's parameters come by reference, as the emulator's tables have it.
std::string text_for(const Sm80ForwardConfig& config) {
  return fmt::format(R"(#include "device/sm80/forward.cuh"
namespace octavo {{
extern "C" __attribute__((visibility("default"))) void {}(const ForwardParams& p) {{
  using Config = sm80::ConfigOf<{}>;
  sm80::sm80_forward<Config>(static_cast<const sm80::ParamsOf<Config>&>(p));
}}
}}  // namespace octavo
)",
                     kEntry, to_text(config));
}
std::string text_for(const Sm90ForwardConfig& config) {
  return fmt::format(R"(#include "device/sm90/forward.cuh"
namespace octavo {{
extern "C" __attribute__((visibility("default"))) void {}(const Sm90ForwardParams& p) {{
  using Config = sm90::ConfigOf<{}>;
  sm90::sm90_forward<Config>(static_cast<const sm90::ParamsOf<Config>&>(p));
}}
}}  // namespace octavo
)",
                     kEntry, to_text(config));
}
std::string text_for(const LadderConfig& config) {
  return fmt::format(R"(#include "device/ladder/{0}.cuh"
namespace octavo {{
extern "C" __attribute__((visibility("default"))) void {1}(const ladder::Params& p) {{
  ladder::{0}<{2}>(p);
}}
}}  // namespace octavo
)",
                     name(config.rung), kEntry, config.head_dim);
}

// Writes `text` to directory/name. Makes the folders first; if it cannot, the file cannot be
// opened.
Status write_source(const std::string& directory, const std::string& name, std::string_view text) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  Result<OutputFile> file = OutputFile::open(path);
  if (!file.ok()) return file.status();
  OCTAVO_RETURN_IF_ERROR(file->write(text));
  return file->commit();
}

// Calls visit(name, text) for every source that `text` includes, each once.
template <class Visit>
void visit_included(std::string_view text, const SourceOverlay& overlay,
                    std::set<std::string>& seen, const Visit& visit) {
  constexpr std::string_view kInclude = "#include \"";
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos;
       at = text.find(kInclude, at)) {
    at += kInclude.size();
    const std::string name(text.substr(at, text.find('"', at) - at));
    for (const EmbeddedSource& source : detail::built_in_sources()) {
      if (name != source.name || !seen.insert(name).second) continue;
      const auto changed = overlay.find(name);
      const std::string_view included =
          changed == overlay.end() ? std::string_view(source.text) : changed->second;
      visit(name, included);
      visit_included(included, overlay, seen, visit);
    }
  }
}

Status write_sources(const std::string& directory, const SourceOverlay& overlay,
                     const std::string& unit) {
  Status status = write_source(directory, "candidate.cc", unit);
  std::set<std::string> seen;
  visit_included(unit, overlay, seen, [&](const std::string& name, std::string_view text) {
    if (status.ok()) status = write_source(directory, name, text);
  });
  return status;
}

// The first error line of a compiler, without the paths before it.
std::string first_error(const std::string& log) {
  constexpr std::size_t kMost = 300;
  std::size_t at = log.find("error:");
  if (at == std::string::npos) at = log.find("undefined");
  if (at == std::string::npos) at = 0;
  const std::size_t begin = log.rfind('\n', at) == std::string::npos ? 0 : log.rfind('\n', at) + 1;
  std::string line = log.substr(begin, std::min(log.find('\n', at), log.size()) - begin);
  const std::size_t path = line.rfind("/device/", line.find("error:"));
  if (path != std::string::npos) line.erase(0, path + 1);
  return printable(line.substr(0, kMost));
}

// The emulated kernels of a family have one arch, on which no compiled code depends.
template <class Kernels, class Config>
std::optional<EmulatedKernel> found_in(const Kernels& kernels, const Config& wanted) {
  for (const auto& kernel : kernels)
    if (kernel.config == wanted) return EmulatedKernel(kernel);
  return {};
}

}  // namespace

std::string host_compiler() {
  const char* const chosen = std::getenv("OCTAVO_CXX");
  if (chosen != nullptr && *chosen != '\0') return on_path(chosen) ? chosen : "";
  for (const char* const program : {"c++", "g++", "clang++"})
    if (on_path(program)) return program;
  return "";
}

HostBuild build_host_kernel(const KernelConfig& config, const SourceOverlay& overlay,
                            const Limits& limits) {
  using End = HostBuild::End;
  const std::string compiler = host_compiler();
  if (compiler.empty())
    return {End::no_compiler, "There is no C++ compiler on the PATH, nor in OCTAVO_CXX.", ""};
  const std::string folder = limits.directory + "/host";
  const std::string unit = std::visit([](const auto& c) { return text_for(c); }, config);
  if (const Status written = write_sources(folder, overlay, unit); !written.ok())
    return {End::no_compiler, written.message(), ""};
  const std::string library = folder + "/candidate.so";
  // No header of the system is needed, so none can be reached.
  const ChildResult compiled =
      run_program(limits, {compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-nostdinc",
                           "-fvisibility=hidden", "-ffp-contract=off", "-I" + folder,
                           folder + "/candidate.cc", "-o", library});
  if (compiled.end == ChildResult::End::failed)
    return {
        End::refused,
        fmt::format("The host's compiler refuses the kernel: {}.", first_error(compiled.output)),
        ""};
  if (!compiled.finished())
    return {End::refused, fmt::format("The host's compiler did not finish: {}", compiled.reason),
            ""};
  return {End::built, "The kernel was compiled for the emulator.", library};
}

std::optional<EmulatedKernel> built_in_kernel(const KernelConfig& config) {
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config)) {
    const auto& kernels = emulator::sm80_forward_kernels();
    Sm80ForwardConfig wanted = *sm80;
    if (!kernels.empty()) wanted.arch = kernels.front().config.arch;
    return found_in(kernels, wanted);
  }
  if (const auto* sm90 = std::get_if<Sm90ForwardConfig>(&config))
    return found_in(emulator::sm90_forward_kernels(), *sm90);
  return found_in(emulator::ladder_kernels(), std::get<LadderConfig>(config));
}

Result<EmulatedKernel> load_host_kernel(const KernelConfig& config, const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return Status(ErrorCode::device_error,
                  fmt::format("The kernel cannot be loaded: {}.", printable(dlerror())));
  void* const entry = dlsym(handle, kEntry);
  if (entry == nullptr) return Status(ErrorCode::device_error, "The kernel has no entry point.");
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config))
    return EmulatedKernel(emulator::EmulatedSm80Forward{
        *sm80, reinterpret_cast<void (*)(const ForwardParams&)>(entry)});
  if (const auto* sm90 = std::get_if<Sm90ForwardConfig>(&config))
    return EmulatedKernel(emulator::EmulatedSm90Forward{
        *sm90, reinterpret_cast<void (*)(const Sm90ForwardParams&)>(entry)});
  return EmulatedKernel(emulator::EmulatedLadder{
      std::get<LadderConfig>(config), reinterpret_cast<void (*)(const ladder::Params&)>(entry)});
}

namespace {

Status run_kernel(const emulator::EmulatedSm80Forward& kernel, const Problem& problem,
                  const Arguments& arguments, const emulator::Settings& settings,
                  const EmulatorThen& then) {
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 0}).value()->info;
  return run_emulated(kernel, chip, problem, arguments, settings, then);
}
Status run_kernel(const emulator::EmulatedSm90Forward& kernel, const Problem& problem,
                  const Arguments& arguments, const emulator::Settings& settings,
                  const EmulatorThen& then) {
  std::vector<std::byte> memory;
  const Result<Arguments> given = with_operands_for(kernel.config, problem, arguments, memory);
  if (!given.ok()) return given.status();
  if (!sm90_forward_can_address(*given))
    return unsupported("a tensor", "one that TMA does not reach", "rows aligned to 16 bytes");
  return run_emulated(kernel, evidence::narrow_sm90_chip(), problem, *given, settings, then);
}
Status run_kernel(const emulator::EmulatedLadder& kernel, const Problem& problem,
                  const Arguments& arguments, const emulator::Settings& settings,
                  const EmulatorThen& then) {
  OCTAVO_RETURN_IF_ERROR(ladder_serves(problem));
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, 90}).value()->info;
  return run_emulated(kernel, chip, problem, arguments, settings, then);
}

}  // namespace

Status run_emulated_kernel(const EmulatedKernel& kernel, const Arguments& arguments,
                           const Options& options, const emulator::Settings& settings,
                           const EmulatorThen& then) {
  const Result<Problem> problem = problem_of(arguments, options);
  if (!problem.ok()) return problem.status();
  return std::visit(
      [&](const auto& k) { return run_kernel(k, *problem, arguments, settings, then); }, kernel);
}

evidence::Runner emulated_runner(const EmulatedKernel& kernel,
                                 std::optional<std::uint64_t> schedule) {
  return evidence::plain_runner(
      [kernel, schedule](const Arguments& arguments, const Options& options) {
        emulator::Settings settings;
        settings.seed = schedule;
        Status found;
        const Status status = run_emulated_kernel(
            kernel, arguments, options, settings, [&found](const emulator::Machine& machine) {
              if (!machine.report().clean())
                found = {ErrorCode::device_error, machine.report().text()};
            });
        return status.ok() ? found : status;
      });
}

}  // namespace octavo::evolve
