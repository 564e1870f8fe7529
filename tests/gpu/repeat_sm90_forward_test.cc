// SPDX-License-Identifier: Apache-2.0
// A repeated launch with other addresses equals, bit for bit, a new launch.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "gpu/forward/sm90_forward.h"

namespace octavo {
namespace {

// The arguments of a launch at the driver.
struct Seen {
  std::vector<unsigned char> bytes;
  cuda::StreamHandle stream = nullptr;
  unsigned grid = 0;
  int cluster = 1;
  std::vector<unsigned char> output;  // the output parameters, if the kernel has them
  float* cleared = nullptr;           // memory cleared before the launch
  std::size_t floats = 0;
  bool operator==(const Seen&) const = default;
};
std::vector<Seen> launches;
Seen before_launch;
int encoded = 0;
cuda::Error refusal = cuda::kSuccess;  // returned when a map's address is replaced

cuda::Error current_context(cuda::Context* context) { return *context = nullptr, cuda::kSuccess; }
cuda::Error encode_map(cuda::TensorMap* map, cuda::TensorMapType, std::uint32_t rank, void* address,
                       const std::uint64_t* shape, const std::uint64_t* strides,
                       const std::uint32_t* box, const std::uint32_t*, cuda::TensorMapInterleave,
                       cuda::TensorMapSwizzle, cuda::TensorMapL2Promotion, cuda::TensorMapFill) {
  ++encoded;
  map->opaque[0] = reinterpret_cast<std::uintptr_t>(address);
  for (std::uint32_t i = 0; i < rank; ++i) {
    map->opaque[1 + i] = shape[i];
    map->opaque[6 + i] = i == 0 ? box[0] : strides[i - 1];
    map->opaque[11 + i] = box[i];
  }
  return cuda::kSuccess;
}
cuda::Error replace_address(cuda::TensorMap* map, void* address) {
  map->opaque[0] = reinterpret_cast<std::uintptr_t>(address);
  return refusal;
}
cuda::Error launch_kernel(const cuda::LaunchConfig* config, cuda::Function, void** arguments,
                          void**) {
  const auto* const bytes = static_cast<const unsigned char*>(arguments[0]);
  Seen seen = before_launch;
  before_launch = {};
  seen.bytes = {bytes, bytes + sizeof(Sm90ForwardParams)};
  seen.stream = config->stream;
  seen.grid = config->grid[0];
  const auto* const output = reinterpret_cast<const unsigned char*>(
      &static_cast<const Sm90ForwardOutputParams*>(arguments[0])->output);
  seen.output = {output, output + sizeof(OutputParams)};
  for (unsigned i = 0; i < config->attribute_count; ++i)
    if (config->attributes[i].id == cuda::LaunchAttributeId::cluster_dimension)
      seen.cluster = static_cast<int>(config->attributes[i].value.cluster_dim[0]);
  launches.push_back(seen);
  return cuda::kSuccess;
}
cuda::Error set_words(cuda::DevicePointer to, unsigned word, std::size_t words,
                      cuda::StreamHandle) {
  EXPECT_EQ(word, 0U);
  before_launch.cleared = reinterpret_cast<float*>(to);
  before_launch.floats = words;
  return cuda::kSuccess;
}
cuda::Error text_of_error(cuda::Error, const char** text) { return *text = "error", 0; }

Driver make_recording_driver() {
  SymbolLoader loader([](const char* symbol) -> void* {
    const std::string_view name = symbol;
    if (name == "cuCtxGetCurrent") return reinterpret_cast<void*>(&current_context);
    if (name == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&encode_map);
    if (name == "cuTensorMapReplaceAddress") return reinterpret_cast<void*>(&replace_address);
    if (name == "cuLaunchKernelEx") return reinterpret_cast<void*>(&launch_kernel);
    if (name == "cuMemsetD32Async") return reinterpret_cast<void*>(&set_words);
    if (name == "cuGetErrorName" || name == "cuGetErrorString")
      return reinterpret_cast<void*>(&text_of_error);
    return nullptr;
  });
  return Driver(loader);
}

class Repeated : public testing::Test {
 protected:
  Repeated() {
    gpu_.info.arch = 90;
    gpu_.info.sms = 132;
    gpu_.info.l2_bytes = 50 << 20;
    gpu_.driver = &driver_;
    refusal = cuda::kSuccess;
  }

  static Arguments arguments(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::uintptr_t at,
                             DType out = DType::f16) {
    const auto place = [at](std::uintptr_t i) { return reinterpret_cast<void*>(at + (i << 32)); };
    Arguments a;
    a.q = Tensor::bhsd(place(1), DType::f16, 2, 4, seqlen_q, 64);
    a.k = Tensor::bshd(place(2), DType::f16, 2, 4, seqlen_kv, 64);
    a.v = Tensor::bhsd(place(3), DType::f16, 2, 4, seqlen_kv, 64);
    a.out = Tensor::bhsd(place(4), out, 2, 4, seqlen_q, 64);
    a.lse = Tensor::bhsd(place(5), DType::f32, 2, 4, seqlen_q, 1);
    return a;
  }
  LoadedSm90Forward kernel_for(const Arguments& a) const {
    return {choose_sm90_forward(*resolve(*problem_of(a)), gpu_.info).config, nullptr};
  }
  Status launch(const RepeatedSm90Forward& repeated, const LoadedSm90Forward& kernel,
                const Arguments& a, Stream stream) {
    Resolved resolved = *resolve(*problem_of(a));
    resolved.order = tile_order(resolved.kernel_problem, kernel.config, gpu_.info);
    return repeated.launch(quantizers_, kernel, resolved, a, nullptr, 0, stream);
  }
  // Launches `a`, and expects that repeating it for `b` equals a new launch of `b`.
  void expect_the_same(const Arguments& a, const Arguments& b) {
    const LoadedSm90Forward kernel = kernel_for(a);
    const RepeatedSm90Forward repeated, another;
    const Stream stream = reinterpret_cast<Stream>(0x77);
    ASSERT_TRUE(launch(repeated, kernel, a, nullptr).ok());
    Status status;
    const int before = encoded;
    ASSERT_TRUE(repeated.launch_again(gpu_, b, {}, stream, status));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(encoded, before);
    const Seen moved = launches.back();
    ASSERT_TRUE(launch(another, kernel, b, stream).ok());
    EXPECT_TRUE(moved == launches.back());
  }
  bool again(const RepeatedSm90Forward& repeated, const Arguments& a) {
    Status status;
    return repeated.launch_again(gpu_, a, {}, nullptr, status);
  }
  // The launch of `a` must not be repeated for the arguments that `change` makes of it.
  void expect_refused_where(const RepeatedSm90Forward& repeated, const Arguments& a, auto change) {
    Arguments b = a;
    change(b);
    EXPECT_FALSE(again(repeated, b));
    EXPECT_TRUE(again(repeated, a));
  }

  const Driver driver_ = make_recording_driver();
  Gpu gpu_;
  LoadedQuantizers quantizers_{gpu_};
};

TEST_F(Repeated, OtherMemoryGivesTheLaunchOfANewCall) {
  expect_the_same(arguments(512, 512, 1 << 20), arguments(512, 512, 1 << 24));
  expect_the_same(arguments(2048, 77, 1 << 20), arguments(2048, 77, 1 << 20));
  expect_the_same(arguments(40, 300, 1 << 20, DType::f32), arguments(40, 300, 1 << 24, DType::f32));
  // Only some tensors move, and there is no LSE.
  Arguments a = arguments(128, 256, 1 << 20);
  a.lse = {};
  Arguments b = a;
  b.v.data = arguments(128, 256, 1 << 25).v.data;
  expect_the_same(a, b);
  b = a;
  b.out.data = arguments(128, 256, 1 << 25).out.data;
  expect_the_same(a, b);
}

// Bias, mask, slopes, sinks and lengths are not compared, so calls with them take the long way:
// neither is their launch kept, nor does another one serve them.
TEST_F(Repeated, CallsWithModifiersOrPaddingAreNotRepeated) {
  const Arguments plain = arguments(512, 512, 1 << 20);
  const LoadedSm90Forward kernel = kernel_for(plain);
  const RepeatedSm90Forward repeated;
  ASSERT_TRUE(launch(repeated, kernel, plain, nullptr).ok());
  static const float floats[8] = {};
  static const std::int32_t lengths[2] = {512, 512};
  constexpr std::array kChanges = {
      +[](Arguments& a) {
        a.bias = Tensor::bhsd(const_cast<float*>(floats), DType::f32, 1, 1, 1, 1);
      },
      +[](Arguments& a) {
        a.mask = Tensor::bhsd(const_cast<float*>(floats), DType::boolean, 1, 1, 1, 1);
      },
      +[](Arguments& a) { a.alibi_slopes = floats; },
      +[](Arguments& a) { a.sinks = floats; },
      +[](Arguments& a) { a.seqlens_q = lengths; },
      +[](Arguments& a) { a.leftpad_kv = lengths; },
  };
  for (const auto change : kChanges) {
    expect_refused_where(repeated, plain, change);
    Arguments modified = plain;
    change(modified);
    const RepeatedSm90Forward another;
    ASSERT_TRUE(launch(another, kernel_for(modified), modified, nullptr).ok());
    EXPECT_FALSE(again(another, modified));
    EXPECT_FALSE(again(another, plain));
  }
  expect_refused_where(repeated, plain, [](Arguments& a) { a.page_table = lengths; });
}

// 8-bit output with a scale per head, and amax, which is cleared every time.
Arguments with_output(Arguments a, std::uintptr_t at) {
  a.out.dtype = DType::e4m3;
  a.out_scales.data = reinterpret_cast<const float*>(at);
  a.out_amax = reinterpret_cast<float*>(at + (1 << 16));
  return a;
}

TEST_F(Repeated, EightBitOutputsMoveScalesAndClearAmax) {
  const Arguments a = with_output(arguments(512, 512, 1 << 20), 0x70000000);
  Arguments b = with_output(arguments(512, 512, 1 << 24), 0x71000000);
  expect_the_same(a, b);
  EXPECT_EQ(launches.back().cleared, b.out_amax);
  EXPECT_EQ(launches.back().floats, 8U);
  b.out_scales.data = a.out_scales.data;
  expect_the_same(a, b);
  Arguments plain = arguments(512, 512, 1 << 20);
  plain.out_amax = a.out_amax;
  expect_the_same(plain, plain);
  EXPECT_EQ(launches.back().floats, 1U);
  expect_the_same(arguments(512, 512, 1 << 20), arguments(512, 512, 1 << 20));
  EXPECT_EQ(launches.back().floats, 0U);

  const RepeatedSm90Forward repeated;
  ASSERT_TRUE(launch(repeated, kernel_for(a), a, nullptr).ok());
  const auto expect_refused = [&](auto change) { expect_refused_where(repeated, a, change); };
  expect_refused([](Arguments& c) { c.out_amax = nullptr; });
  expect_refused([](Arguments& c) { c.out_scales.granularity = Granularity::tensor; });
  expect_refused([](Arguments& c) { c.out_scales.data = nullptr; });
  expect_refused([](Arguments& c) { c.out_scales.stride = std::array<std::int64_t, 3>{4, 1, 0}; });
  expect_refused([](Arguments& c) { c.out_amax = const_cast<float*>(c.out_scales.data) + 7; });
  expect_refused([](Arguments& c) { c.out_amax = static_cast<float*>(c.out.data); });
  expect_refused([](Arguments& c) { c.out_amax = static_cast<float*>(c.lse.data) + 9; });
  for (ConstTensor Arguments::*input : {&Arguments::q, &Arguments::k, &Arguments::v})
    expect_refused([&](Arguments& c) {
      c.out_amax = static_cast<float*>(const_cast<void*>((c.*input).data)) - 1;
    });
  expect_refused([](Arguments& c) {
    c.out_amax = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(c.out_amax) + 2);
  });
}

TEST_F(Repeated, NotIfMoreThanAddressesDiffers) {
  const Arguments a = arguments(128, 256, 1 << 20);
  const RepeatedSm90Forward repeated, never;
  EXPECT_FALSE(again(repeated, a));
  ASSERT_TRUE(launch(repeated, kernel_for(a), a, nullptr).ok());
  EXPECT_TRUE(again(repeated, a));
  EXPECT_FALSE(again(never, a));
  const auto expect_refused = [&](auto change) { expect_refused_where(repeated, a, change); };
  expect_refused([](Arguments& b) { b.k.shape[2] = b.v.shape[2] = 255; });
  expect_refused([](Arguments& b) { b.q.stride[1] += 64; });
  expect_refused([](Arguments& b) { b.out.dtype = DType::bf16; });
  expect_refused([](Arguments& b) { b.scale = 0.5f; });
  expect_refused([](Arguments& b) { b.lse = {}; });
  expect_refused([](Arguments& b) { b.lse.stride[1] += 1; });
  expect_refused([](Arguments& b) { b.max_seqlen_q = 1; });
  static const std::int32_t starts[3] = {};
  expect_refused([](Arguments& b) { b.cu_seqlens_q = b.cu_seqlens_kv = starts; });
}

// Arguments that validation would refuse, or that another kernel would serve.
TEST_F(Repeated, NotIfAddressesNeedValidation) {
  const Arguments a = arguments(128, 256, 1 << 20);
  const RepeatedSm90Forward repeated;
  ASSERT_TRUE(launch(repeated, kernel_for(a), a, nullptr).ok());
  const auto expect_refused = [&](auto change) { expect_refused_where(repeated, a, change); };
  const auto past = [](const void* data, std::intptr_t bytes) {
    return reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(data) + bytes);
  };
  for (ConstTensor Arguments::*input : {&Arguments::q, &Arguments::k, &Arguments::v}) {
    expect_refused([&](Arguments& b) { (b.*input).data = nullptr; });
    expect_refused([&](Arguments& b) { (b.*input).data = past((a.*input).data, 8); });
    expect_refused([&](Arguments& b) { b.out.data = const_cast<void*>((a.*input).data); });
    expect_refused([&](Arguments& b) { b.out.data = past((a.*input).data, 16); });
    expect_refused([&](Arguments& b) { b.out.data = past((a.*input).data, -16); });
    expect_refused([&](Arguments& b) { b.lse.data = past((a.*input).data, 16); });
    expect_refused([&](Arguments& b) { (b.*input).data = past(nullptr, -16); });
  }
  expect_refused([&](Arguments& b) { b.out.data = nullptr; });
  expect_refused([&](Arguments& b) { b.out.data = past(a.out.data, 2); });
  expect_refused([&](Arguments& b) { b.lse.data = past(a.lse.data, 2); });
  expect_refused([&](Arguments& b) { b.lse.data = past(a.out.data, 64); });
}

// The starts of sequences and the scales may move, but not into what is written.
TEST_F(Repeated, AnOutputOverAnArrayIsNotRepeated) {
  const auto place = [](std::uintptr_t i) { return reinterpret_cast<void*>(i << 32); };
  static const std::int32_t starts[3] = {};
  Arguments varlen = arguments(128, 256, 1 << 20);
  varlen.q.shape[0] = varlen.k.shape[0] = varlen.v.shape[0] = 1;
  varlen.out.shape[0] = varlen.lse.shape[0] = 1;
  varlen.cu_seqlens_q = varlen.cu_seqlens_kv = starts;
  varlen.sequences = 2;
  varlen.max_seqlen_q = varlen.max_seqlen_kv = 100;
  Arguments scaled = arguments(128, 256, 1 << 20);
  for (ConstTensor Arguments::*input : {&Arguments::q, &Arguments::k, &Arguments::v})
    (scaled.*input).dtype = DType::e4m3;
  scaled.q_scales = {static_cast<const float*>(place(40)), Granularity::row};
  scaled.k_scales = {static_cast<const float*>(place(41)), Granularity::head};
  scaled.v_scales = {static_cast<const float*>(place(42)), Granularity::head};
  for (const Arguments& a : {varlen, scaled}) {
    const RepeatedSm90Forward repeated;
    ASSERT_TRUE(launch(repeated, kernel_for(a), a, nullptr).ok());
    Arguments moved = a;
    if (a.cu_seqlens_q != nullptr)
      moved.cu_seqlens_kv = static_cast<const std::int32_t*>(place(50));
    else
      moved.k_scales.data = static_cast<const float*>(place(51));
    EXPECT_TRUE(again(repeated, moved));
    const auto expect_refused = [&](auto change) { expect_refused_where(repeated, a, change); };
    for (Tensor Arguments::*written : {&Arguments::out, &Arguments::lse}) {
      const auto* const words = static_cast<const std::int32_t*>((a.*written).data);
      const auto* const floats = static_cast<const float*>((a.*written).data);
      if (a.cu_seqlens_q != nullptr) {
        expect_refused([&](Arguments& b) { b.cu_seqlens_q = words + 9; });
        expect_refused([&](Arguments& b) { b.cu_seqlens_kv = words - 2; });
      } else {
        expect_refused([&](Arguments& b) { b.q_scales.data = floats - 1023; });
        expect_refused([&](Arguments& b) { b.k_scales.data = floats - 7; });
        expect_refused([&](Arguments& b) { b.v_scales.data = floats; });
      }
    }
  }
}

// A replacement that failed half-way is not reused.
TEST_F(Repeated, LaunchesAnewAfterAFailure) {
  const Arguments a = arguments(128, 256, 1 << 20), b = arguments(128, 256, 1 << 24);
  const RepeatedSm90Forward repeated;
  ASSERT_TRUE(launch(repeated, kernel_for(a), a, nullptr).ok());
  refusal = 1;
  Status status;
  EXPECT_TRUE(repeated.launch_again(gpu_, b, {}, nullptr, status));
  EXPECT_FALSE(status.ok());
  refusal = cuda::kSuccess;
  EXPECT_FALSE(again(repeated, a));
}

}  // namespace
}  // namespace octavo
