// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, opened at run time so that the library loads on a machine without it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpu/driver/driver_types.h"
#include "gpu/driver/shared_library.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Every driver function that Octavo calls, by its versioned symbol. Functions of newer drivers may
// be null where noted.
struct Driver {
  explicit Driver(SymbolLoader& from) : from_(&from) { from_ = nullptr; }

 private:
  SymbolLoader* from_;  // first: the members below are initialised through it; then null
  using Error = cuda::Error;
  using Pointer = cuda::DevicePointer;
  using Stream = cuda::StreamHandle;

 public:
  // clang-format off
  Error (*init)(unsigned) = from_->needed("cuInit");
  Error (*driver_get_version)(int*) = from_->needed("cuDriverGetVersion");
  Error (*get_error_name)(Error, const char**) = from_->needed("cuGetErrorName");
  Error (*get_error_string)(Error, const char**) = from_->needed("cuGetErrorString");

  Error (*device_get_count)(int*) = from_->needed("cuDeviceGetCount");
  Error (*device_get)(cuda::DeviceOrdinal*, int) = from_->needed("cuDeviceGet");
  Error (*device_get_name)(char*, int, cuda::DeviceOrdinal) = from_->needed("cuDeviceGetName");
  Error (*device_total_mem)(std::size_t*, cuda::DeviceOrdinal) = from_->needed("cuDeviceTotalMem_v2");
  Error (*device_get_attribute)(int*, cuda::DeviceAttribute, cuda::DeviceOrdinal) = from_->needed("cuDeviceGetAttribute");

  // May be null.
  Error (*device_get_pci_bus_id)(char*, int, cuda::DeviceOrdinal) = from_->optional("cuDeviceGetPCIBusId");

  Error (*primary_context_retain)(cuda::Context*, cuda::DeviceOrdinal) = from_->needed("cuDevicePrimaryCtxRetain");
  Error (*primary_context_release)(cuda::DeviceOrdinal) = from_->needed("cuDevicePrimaryCtxRelease_v2");
  Error (*context_get_current)(cuda::Context*) = from_->needed("cuCtxGetCurrent");
  Error (*context_set_current)(cuda::Context) = from_->needed("cuCtxSetCurrent");
  Error (*context_push)(cuda::Context) = from_->needed("cuCtxPushCurrent_v2");
  Error (*context_pop)(cuda::Context*) = from_->needed("cuCtxPopCurrent_v2");
  Error (*context_synchronize)() = from_->needed("cuCtxSynchronize");
  Error (*context_set_limit)(cuda::Limit, std::size_t) = from_->needed("cuCtxSetLimit");

  Error (*module_load_data_ex)(cuda::Module*, const void*, unsigned, int*, void**) = from_->needed("cuModuleLoadDataEx");
  Error (*module_unload)(cuda::Module) = from_->needed("cuModuleUnload");
  Error (*module_get_function)(cuda::Function*, cuda::Module, const char*) = from_->needed("cuModuleGetFunction");
  Error (*function_get_attribute)(int*, cuda::FunctionAttribute, cuda::Function) = from_->needed("cuFuncGetAttribute");
  Error (*function_set_attribute)(cuda::Function, cuda::FunctionAttribute, int) = from_->needed("cuFuncSetAttribute");
  Error (*launch_kernel)(const cuda::LaunchConfig*, cuda::Function, void**, void**) = from_->needed("cuLaunchKernelEx");
  Error (*occupancy)(int*, cuda::Function, int, std::size_t) = from_->needed("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  Error (*cluster_occupancy)(int*, cuda::Function, const cuda::LaunchConfig*) = from_->needed("cuOccupancyMaxActiveClusters");

  Error (*mem_alloc)(Pointer*, std::size_t) = from_->needed("cuMemAlloc_v2");
  Error (*mem_free)(Pointer) = from_->needed("cuMemFree_v2");
  Error (*mem_get_info)(std::size_t*, std::size_t*) = from_->needed("cuMemGetInfo_v2");
  Error (*mem_alloc_host)(void**, std::size_t) = from_->needed("cuMemAllocHost_v2");
  Error (*mem_free_host)(void*) = from_->needed("cuMemFreeHost");
  Error (*memcpy_htod)(Pointer, const void*, std::size_t) = from_->needed("cuMemcpyHtoD_v2");
  Error (*memcpy_dtoh)(void*, Pointer, std::size_t) = from_->needed("cuMemcpyDtoH_v2");
  Error (*memcpy_htod_async)(Pointer, const void*, std::size_t, Stream) = from_->needed("cuMemcpyHtoDAsync_v2");
  Error (*memcpy_dtoh_async)(void*, Pointer, std::size_t, Stream) = from_->needed("cuMemcpyDtoHAsync_v2");
  Error (*memcpy_dtod_async)(Pointer, Pointer, std::size_t, Stream) = from_->needed("cuMemcpyDtoDAsync_v2");
  Error (*memset_d8_async)(Pointer, unsigned char, std::size_t, Stream) = from_->needed("cuMemsetD8Async");
  Error (*memset_d32_async)(Pointer, unsigned, std::size_t, Stream) = from_->needed("cuMemsetD32Async");
  Error (*pointer_get_attribute)(void*, cuda::PointerAttribute, Pointer) = from_->needed("cuPointerGetAttribute");

  Error (*stream_create)(Stream*, unsigned) = from_->needed("cuStreamCreate");
  Error (*stream_destroy)(Stream) = from_->needed("cuStreamDestroy_v2");
  Error (*stream_synchronize)(Stream) = from_->needed("cuStreamSynchronize");
  Error (*stream_query)(Stream) = from_->needed("cuStreamQuery");
  Error (*stream_wait_event)(Stream, cuda::Event, unsigned) = from_->needed("cuStreamWaitEvent");
  Error (*stream_is_capturing)(Stream, cuda::CaptureStatus*) = from_->needed("cuStreamIsCapturing");
  Error (*stream_get_context)(Stream, cuda::Context*) = from_->needed("cuStreamGetCtx");
  Error (*event_create)(cuda::Event*, unsigned) = from_->needed("cuEventCreate");
  Error (*event_destroy)(cuda::Event) = from_->needed("cuEventDestroy_v2");
  Error (*event_record)(cuda::Event, Stream) = from_->needed("cuEventRecord");
  Error (*event_query)(cuda::Event) = from_->needed("cuEventQuery");
  Error (*event_synchronize)(cuda::Event) = from_->needed("cuEventSynchronize");
  Error (*event_elapsed_ms)(float*, cuda::Event, cuda::Event) = from_->needed("cuEventElapsedTime");

  Error (*stream_begin_capture)(Stream, cuda::CaptureMode) = from_->needed("cuStreamBeginCapture_v2");
  Error (*stream_end_capture)(Stream, cuda::Graph*) = from_->needed("cuStreamEndCapture");
  Error (*graph_instantiate)(cuda::GraphExec*, cuda::Graph, unsigned long long) = from_->needed("cuGraphInstantiateWithFlags");
  Error (*graph_launch)(cuda::GraphExec, Stream) = from_->needed("cuGraphLaunch");
  Error (*graph_exec_destroy)(cuda::GraphExec) = from_->needed("cuGraphExecDestroy");
  Error (*graph_destroy)(cuda::Graph) = from_->needed("cuGraphDestroy");

  // Null before CUDA 12.
  Error (*tensor_map_encode_tiled)(cuda::TensorMap*, cuda::TensorMapType, std::uint32_t rank, void* address,
                                   const std::uint64_t* shape, const std::uint64_t* strides_bytes,
                                   const std::uint32_t* box, const std::uint32_t* element_strides,
                                   cuda::TensorMapInterleave, cuda::TensorMapSwizzle,
                                   cuda::TensorMapL2Promotion, cuda::TensorMapFill) = from_->optional("cuTensorMapEncodeTiled");
  Error (*tensor_map_replace_address)(cuda::TensorMap*, void* address) = from_->optional("cuTensorMapReplaceAddress");
  // clang-format on

  // The error of a failed call, such as "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY, out of
  // memory." `call` names the function.
  Status status(cuda::Error error, std::string_view call) const;
};

// Opens and initialises the driver once and caches the result. Fails with lost_by_fork() in a
// process whose parent had initialised the driver before fork().
Result<const Driver*> driver();

// The error in a child process: CUDA does not survive fork().
Status lost_by_fork();

// Opens a driver library by path, looks up every symbol and initialises it. For tests, and for
// drivers in unusual places. The library stays open.
Result<Driver> open_driver(const std::string& library);
Result<Driver> make_driver(SymbolLoader& loader, std::string_view library);

struct GpuInfo {
  int index = 0;
  std::string name;
  int arch = 0;  // compute capability, 90 for 9.0
  int sms = 0;
  int smem_per_block_optin = 0;
  int l2_bytes = 0;
  std::size_t memory_bytes = 0;
  int clock_khz = 0;  // 0: unknown
  int driver_version = 0;
  bool tensor_maps = true;  // the driver can encode them
};
Result<std::vector<GpuInfo>> gpus();
Result<std::vector<GpuInfo>> gpus(const Driver& driver);

// The GPU of that name ("h100"), in any case, as the CUDA driver would report it if it were here;
// an error that lists the names. known_gpus() of octavo/kernels.hpp lists them all.
Result<GpuInfo> gpu_named(std::string_view name);

}  // namespace octavo

// Returns the error of a failed driver call: OCTAVO_GPU_TRY(d, d.mem_free(p), "cuMemFree").
#define OCTAVO_GPU_TRY(driver, expression, call)                                        \
  do {                                                                                  \
    const ::octavo::cuda::Error try_error = (expression);                               \
    if (try_error != ::octavo::cuda::kSuccess) return (driver).status(try_error, call); \
  } while (false)
