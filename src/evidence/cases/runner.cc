// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "evidence/cases/inputs.h"
#include "gpu/driver/context.h"
#include "runtime/plan/gpu_plan.h"
#include "runtime/staging.h"

namespace octavo::evidence {
namespace {

bool intact(const std::byte* begin, std::size_t bytes) {
  return std::all_of(begin, begin + bytes, [](std::byte b) { return b == kPoison; });
}

Status overrun(std::size_t bytes) {
  return {ErrorCode::device_error,
          fmt::format("memory beyond the workspace of {} bytes was overwritten.", bytes)};
}

// A call on the CPU, with guards on both sides of its workspace.
struct HostCall {
  Kernel kernel;
  Arguments arguments;

  Status run() const {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = kernel.workspace_bytes(arguments);
    std::vector<std::byte> memory(bytes + 2 * kGuardBytes + kAlignment, kPoison);
    void* aligned = memory.data() + kGuardBytes;
    std::size_t room = memory.size() - kGuardBytes;
    std::align(kAlignment, bytes + kGuardBytes, aligned, room);
    auto* const begin = static_cast<std::byte*>(aligned);
    OCTAVO_RETURN_IF_ERROR(kernel.run(arguments, {begin, bytes}, nullptr));
    const bool whole =
        intact(begin - kGuardBytes, kGuardBytes) && intact(begin + bytes, kGuardBytes);
    return whole ? Status() : overrun(bytes);
  }
};

// A call on another device: tensors with their guards are copied there once, outputs are copied in
// both directions each time.
struct StagedCall {
  Kernel kernel;
  Device device;
  std::shared_ptr<const OwnStream> stream;  // null: the default one
  StagedArguments staged;
  Buffer workspace;  // between two guards

  Status run() const {
    const std::size_t bytes = workspace.bytes() - 2 * kGuardBytes;
    std::vector<std::byte> guards(2 * kGuardBytes, kPoison);
    OCTAVO_RETURN_IF_ERROR(workspace.upload(guards.data(), kGuardBytes));
    OCTAVO_RETURN_IF_ERROR(workspace.upload(guards.data(), kGuardBytes, kGuardBytes + bytes));
    OCTAVO_RETURN_IF_ERROR(staged.send_outputs());
    std::byte* const begin = static_cast<std::byte*>(workspace.data()) + kGuardBytes;
    const Stream on = stream == nullptr ? nullptr : stream->handle();
    // Copies on the default stream must be complete before another stream starts.
    if (on != nullptr) OCTAVO_RETURN_IF_ERROR(synchronize(device));
    OCTAVO_RETURN_IF_ERROR(kernel.run(staged.on_device(), {begin, bytes}, on));
    OCTAVO_RETURN_IF_ERROR(synchronize(device, on));
    OCTAVO_RETURN_IF_ERROR(staged.fetch(on));
    OCTAVO_RETURN_IF_ERROR(workspace.download(guards.data(), kGuardBytes));
    OCTAVO_RETURN_IF_ERROR(
        workspace.download(guards.data() + kGuardBytes, kGuardBytes, kGuardBytes + bytes));
    return intact(guards.data(), guards.size()) ? Status() : overrun(bytes);
  }
};

Result<Call> make_call(Device device, const MakeKernel& make_kernel,
                       const std::shared_ptr<const OwnStream>& stream, const Arguments& arguments,
                       const Options& options) {
  const Result<Problem> problem = problem_of(arguments, options);
  if (!problem.ok()) return problem.status();
  const Result<Kernel> kernel = make_kernel(*problem, device);
  if (!kernel.ok()) return kernel.status();
  if (device.kind == Device::Kind::cpu)
    return Call([call = HostCall{*kernel, arguments}] { return call.run(); });
  const Result<StagedArguments> staged =
      StagedArguments::make(arguments, *problem, device, kGuardBytes);
  if (!staged.ok()) return staged.status();
  const Result<Buffer> workspace =
      Buffer::make(device, kernel->workspace_bytes(arguments) + 2 * kGuardBytes);
  if (!workspace.ok()) return workspace.status();
  return Call(
      [call = StagedCall{*kernel, device, stream, *staged, *workspace}] { return call.run(); });
}

Kernel kernel_of(const Plan& plan) {
  return {[plan](const Arguments& arguments) { return plan.workspace_bytes(arguments); },
          [plan](const Arguments& arguments, Workspace workspace, Stream stream) {
            return plan.run(arguments, workspace, stream);
          }};
}

// If a forced configuration does not serve a problem, the error is about the configuration.
Status refusal(const Status& status) {
  const bool of_config =
      status.code() == ErrorCode::invalid_argument && status.message().starts_with("config");
  return of_config ? Status(ErrorCode::unsupported, status.message()) : status;
}

}  // namespace

Result<Kernel> library_kernel(const Problem& problem, Device device) {
  const Result<Plan> planned = plan(problem, device);
  if (!planned.ok()) return planned.status();
  return kernel_of(*planned);
}

Result<Kernel> one_call_kernel(const Problem& problem, Device device) {
  return Kernel{
      [](const Arguments&) { return std::size_t{0}; },
      [options = problem.options, device](const Arguments& arguments, Workspace, Stream stream) {
        return attention(arguments, options, device, stream);
      }};
}

MakeKernel kernel_of_config(std::string config) {
  return [config = std::move(config)](const Problem& problem, Device device) -> Result<Kernel> {
    const auto made = make_gpu_plan(problem, device, config);
    if (!made.ok()) return refusal(made.status());
    Kernel kernel = kernel_of(Plan(*made));
    kernel.run = [run = kernel.run](const Arguments& arguments, Workspace workspace,
                                    Stream stream) {
      return refusal(run(arguments, workspace, stream));
    };
    return kernel;
  };
}

Runner runner_of(Device device, MakeKernel make_kernel, OnStream on) {
  return [device, make_kernel = std::move(make_kernel), on,
          stream = std::shared_ptr<const OwnStream>()](
             const Arguments& arguments, const Options& options) mutable -> Result<Call> {
    if (on == OnStream::own && device.kind == Device::Kind::cuda && stream == nullptr) {
      Result<std::shared_ptr<const OwnStream>> made = OwnStream::make(device.index);
      if (!made.ok()) return made.status();
      stream = std::move(made).value();
    }
    return make_call(device, make_kernel, stream, arguments, options);
  };
}

Runner library_runner(Device device) {
  return runner_of(device, library_kernel, OnStream::standard);
}

Runner plain_runner(std::function<Status(const Arguments&, const Options&)> run) {
  return [run = std::move(run)](const Arguments& arguments, const Options& options) {
    return Result<Call>(Call([run, arguments, options] { return run(arguments, options); }));
  };
}

}  // namespace octavo::evidence
