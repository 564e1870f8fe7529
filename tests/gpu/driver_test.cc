// SPDX-License-Identifier: Apache-2.0
// Without a driver the error names what is missing; with a fake one, tests the list of GPUs and the
// texts of failures.
#include "gpu/driver/driver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#if __has_include(<cuda.h>)
#include <cuda.h>
#define OCTAVO_HAVE_CUDA_H 1
#endif

namespace octavo {
namespace {

int fake_init(unsigned) { return cuda::kSuccess; }
int fake_init_no_device(unsigned) { return cuda::kNoDevice; }
int fake_init_broken(unsigned) { return 999; }
int fake_version(int* version) { return *version = 13000, cuda::kSuccess; }
int fake_count(int* count) { return *count = 2, cuda::kSuccess; }
int fake_get(int* device, int index) { return *device = index + 10, cuda::kSuccess; }
int fake_name(char* name, int size, int device) {
  std::strncpy(name, device == 10 ? "first" : "second", static_cast<std::size_t>(size));
  return cuda::kSuccess;
}
int fake_memory(std::size_t* bytes, int) { return *bytes = std::size_t{1} << 37, cuda::kSuccess; }
int fake_attribute(int* value, int attribute, int device) {
  const std::map<int, int> values = {{75, device == 10 ? 8 : 9},
                                     {76, device == 10 ? 9 : 0},
                                     {16, 58},
                                     {97, 101376},
                                     {38, 50 << 20}};
  const auto found = values.find(attribute);
  if (found == values.end()) return 1;
  *value = found->second;
  return cuda::kSuccess;
}
int fake_error_name(int error, const char** text) {
  *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
  return *text == nullptr ? 1 : cuda::kSuccess;
}
int fake_error_string(int error, const char** text) {
  *text = error == 2 ? "out of memory" : nullptr;
  return *text == nullptr ? 1 : cuda::kSuccess;
}
int fake_other() { return cuda::kSuccess; }

template <class F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}

void* fake_symbol(std::string_view name) {
  const std::map<std::string_view, void*> known = {
      {"cuInit", address(fake_init)},
      {"cuDriverGetVersion", address(fake_version)},
      {"cuDeviceGetCount", address(fake_count)},
      {"cuDeviceGet", address(fake_get)},
      {"cuDeviceGetName", address(fake_name)},
      {"cuDeviceTotalMem_v2", address(fake_memory)},
      {"cuDeviceGetAttribute", address(fake_attribute)},
      {"cuGetErrorName", address(fake_error_name)},
      {"cuGetErrorString", address(fake_error_string)},
  };
  const auto found = known.find(name);
  return found == known.end() ? address(fake_other) : found->second;
}

TEST(Driver, MissingLibraryIsReported) {
  const Result<Driver> opened = open_driver("libcuda_that_is_not_there.so.1");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), ErrorCode::unsupported);
  EXPECT_EQ(opened.status().message(),
            "The CUDA driver library libcuda_that_is_not_there.so.1 cannot be opened.");
}

TEST(Driver, AnotherLibraryHasNoSymbols) {
  const Result<Driver> opened = open_driver("libm.so.6");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("libm.so.6 has no cuInit"), std::string::npos)
      << opened.status().message();
}

TEST(Driver, EveryMissingSymbolIsNamed) {
  for (const char* name : {"cuMemAlloc_v2", "cuLaunchKernelEx", "cuGraphInstantiateWithFlags"}) {
    SymbolLoader loader([name](const char* symbol) -> void* {
      return std::string_view(symbol) == name ? nullptr : fake_symbol(symbol);
    });
    const Result<Driver> made = make_driver(loader, "libcuda.so.1");
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), ErrorCode::unsupported);
    EXPECT_NE(made.status().message().find(name), std::string::npos);
  }
}

TEST(Driver, TensorMapsAreOptional) {
  SymbolLoader loader([](const char* symbol) -> void* {
    return std::string_view(symbol) == "cuTensorMapEncodeTiled" ? nullptr : fake_symbol(symbol);
  });
  const Result<Driver> made = make_driver(loader, "libcuda.so.1");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->tensor_map_encode_tiled, nullptr);
  EXPECT_NE(made->mem_alloc, nullptr);
}

TEST(Driver, NoDeviceAndBrokenInit) {
  const auto with_init = [](int (*init)(unsigned)) {
    SymbolLoader loader([init](const char* symbol) {
      return std::string_view(symbol) == "cuInit" ? address(init) : fake_symbol(symbol);
    });
    return make_driver(loader, "libcuda.so.1").status();
  };
  EXPECT_EQ(with_init(fake_init_no_device).code(), ErrorCode::unsupported);
  EXPECT_EQ(with_init(fake_init_no_device).message(), "The CUDA driver sees no GPU.");
  EXPECT_EQ(with_init(fake_init_broken).code(), ErrorCode::device_error);
  EXPECT_EQ(with_init(fake_init_broken).message(),
            "cuInit failed with CUDA error 999: unknown error, no description.");
}

TEST(Driver, ListsGpus) {
  SymbolLoader loader([](const char* symbol) { return fake_symbol(symbol); });
  const Result<Driver> made = make_driver(loader, "libcuda.so.1");
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Result<std::vector<GpuInfo>> list = gpus(*made);
  ASSERT_TRUE(list.ok()) << list.status().message();
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].name, "first");
  EXPECT_EQ((*list)[0].arch, 89);
  EXPECT_EQ((*list)[1].arch, 90);
  EXPECT_EQ((*list)[1].index, 1);
  EXPECT_EQ((*list)[1].sms, 58);
  EXPECT_EQ((*list)[1].smem_per_block_optin, 101376);
  EXPECT_EQ((*list)[1].l2_bytes, 50 << 20);
  EXPECT_EQ((*list)[1].clock_khz, 0);  // the fake does not report it
  EXPECT_EQ((*list)[1].driver_version, 13000);
  EXPECT_EQ((*list)[1].memory_bytes, std::size_t{1} << 37);
}

TEST(Driver, OutOfMemoryHasItsOwnCode) {
  SymbolLoader loader([](const char* symbol) { return fake_symbol(symbol); });
  const Result<Driver> made = make_driver(loader, "libcuda.so.1");
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->status(cuda::kSuccess, "cuMemAlloc").ok());
  EXPECT_EQ(made->status(cuda::kOutOfMemory, "cuMemAlloc").code(), ErrorCode::out_of_memory);
  EXPECT_EQ(made->status(cuda::kOutOfMemory, "cuMemAlloc").message(),
            "cuMemAlloc failed with CUDA error 2: CUDA_ERROR_OUT_OF_MEMORY, out of memory.");
}

TEST(Driver, SystemDriverWorksOrGivesAReason) {
  const Result<const Driver*> opened = driver();
  if (!opened.ok()) {
    EXPECT_FALSE(opened.status().message().empty());
    EXPECT_FALSE(gpus().ok());
    EXPECT_EQ(gpus().status().message(), opened.status().message());
    return;
  }
  EXPECT_TRUE(gpus().ok()) << gpus().status().message();
}

TEST(Driver, TypesAgreeWithTheToolkit) {
#if !OCTAVO_HAVE_CUDA_H
  GTEST_SKIP() << "cuda.h was not found when this was compiled";
#else
  static_assert(sizeof(CUdeviceptr) == sizeof(cuda::DevicePointer));
  static_assert(sizeof(CUlaunchConfig) == sizeof(cuda::LaunchConfig));
  static_assert(offsetof(CUlaunchConfig, blockDimX) == offsetof(cuda::LaunchConfig, block));
  static_assert(offsetof(CUlaunchConfig, sharedMemBytes) ==
                offsetof(cuda::LaunchConfig, smem_bytes));
  static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(cuda::LaunchConfig, stream));
  static_assert(offsetof(CUlaunchConfig, attrs) == offsetof(cuda::LaunchConfig, attributes));
  static_assert(offsetof(CUlaunchConfig, numAttrs) ==
                offsetof(cuda::LaunchConfig, attribute_count));
  static_assert(sizeof(CUlaunchAttribute) == sizeof(cuda::LaunchAttribute));
  static_assert(offsetof(CUlaunchAttribute, value) == offsetof(cuda::LaunchAttribute, value));
  static_assert(sizeof(CUaccessPolicyWindow) == sizeof(cuda::AccessPolicyWindow));
  static_assert(offsetof(CUaccessPolicyWindow, missProp) ==
                offsetof(cuda::AccessPolicyWindow, miss_property));
  static_assert(sizeof(CUtensorMap) == sizeof(cuda::TensorMap));
  static_assert(alignof(CUtensorMap) <= alignof(cuda::TensorMap));

  const std::pair<int, int> values[] = {
      {CUDA_ERROR_OUT_OF_MEMORY, cuda::kOutOfMemory},
      {CUDA_ERROR_NO_DEVICE, cuda::kNoDevice},
      {CUDA_ERROR_INVALID_IMAGE, cuda::kInvalidImage},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, cuda::kNoBinaryForGpu},
      {CUDA_ERROR_NOT_READY, cuda::kNotReady},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, int(cuda::DeviceAttribute::clock_khz)},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, int(cuda::DeviceAttribute::sms)},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, int(cuda::DeviceAttribute::l2_bytes)},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, int(cuda::DeviceAttribute::major)},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, int(cuda::DeviceAttribute::minor)},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
       int(cuda::DeviceAttribute::smem_per_block_optin)},
      {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE,
       int(cuda::DeviceAttribute::max_persisting_l2_bytes)},
      {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, int(cuda::FunctionAttribute::max_threads)},
      {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, int(cuda::FunctionAttribute::static_smem_bytes)},
      {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, int(cuda::FunctionAttribute::local_bytes)},
      {CU_FUNC_ATTRIBUTE_NUM_REGS, int(cuda::FunctionAttribute::registers)},
      {CU_FUNC_ATTRIBUTE_PTX_VERSION, int(cuda::FunctionAttribute::ptx_version)},
      {CU_FUNC_ATTRIBUTE_BINARY_VERSION, int(cuda::FunctionAttribute::binary_version)},
      {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
       int(cuda::FunctionAttribute::max_dynamic_smem_bytes)},
      {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
       int(cuda::FunctionAttribute::preferred_smem_carveout)},
      {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, int(cuda::PointerAttribute::memory_type)},
      {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, int(cuda::PointerAttribute::device_ordinal)},
      {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, int(cuda::CaptureMode::thread_local_mode)},
      {CU_STREAM_CAPTURE_MODE_RELAXED, int(cuda::CaptureMode::relaxed)},
      {CU_STREAM_CAPTURE_STATUS_ACTIVE, int(cuda::CaptureStatus::active)},
      {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, int(cuda::Limit::persisting_l2_bytes)},
      {CU_STREAM_NON_BLOCKING, int(cuda::kStreamNonBlocking)},
      {CU_EVENT_DISABLE_TIMING, int(cuda::kEventDisableTiming)},
      {CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
       int(cuda::LaunchAttributeId::access_policy_window)},
      {CU_LAUNCH_ATTRIBUTE_COOPERATIVE, int(cuda::LaunchAttributeId::cooperative)},
      {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, int(cuda::LaunchAttributeId::cluster_dimension)},
      {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
       int(cuda::LaunchAttributeId::programmatic_stream_serialization)},
      {CU_TENSOR_MAP_DATA_TYPE_UINT8, int(cuda::TensorMapType::u8)},
      {CU_TENSOR_MAP_DATA_TYPE_UINT16, int(cuda::TensorMapType::u16)},
      {CU_TENSOR_MAP_DATA_TYPE_UINT32, int(cuda::TensorMapType::u32)},
      {CU_TENSOR_MAP_DATA_TYPE_INT32, int(cuda::TensorMapType::i32)},
      {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, int(cuda::TensorMapType::f16)},
      {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, int(cuda::TensorMapType::f32)},
      {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, int(cuda::TensorMapType::bf16)},
      {CU_TENSOR_MAP_INTERLEAVE_16B, int(cuda::TensorMapInterleave::bytes_16)},
      {CU_TENSOR_MAP_INTERLEAVE_32B, int(cuda::TensorMapInterleave::bytes_32)},
      {CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA, int(cuda::TensorMapFill::nan)},
      {CU_TENSOR_MAP_SWIZZLE_128B, int(cuda::TensorMapSwizzle::bytes_128)},
      {CU_TENSOR_MAP_L2_PROMOTION_L2_256B, int(cuda::TensorMapL2Promotion::bytes_256)},
  };
  for (const auto& [theirs, ours] : values) EXPECT_EQ(theirs, ours);
#endif
}

}  // namespace
}  // namespace octavo
