// Octavo: fused scaled-dot-product attention, O = softmax(scale * Q K^T + mask) V.
//
// The road of a call, one direction:
//   Arguments + Options -> Problem (what a plan fixes) -> plan() -> Plan -> Plan::run() -> Status
// attention() walks it in one call and keeps the plans it made.
//
// What returns a Status or a Result does not throw: where memory cannot be had the status is
// out_of_memory. Result<T>::value() throws the Status of a failed result, and what returns text or
// a list by value (describe(), name(Device), devices(), Plan::explain()) std::bad_alloc where there
// is no memory for it. On failure nothing is written. docs/promises.md has all promises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(_WIN32)
#define OCTAVO_API
#else
#define OCTAVO_API [[gnu::visibility("default")]]
#endif

namespace octavo {

// ---------------------------------------------------------------------------------------------
// Errors: one type, returned everywhere, thrown only by Result<T>::value().

enum class ErrorCode : std::uint8_t {
  ok,
  invalid_argument,  // the caller can fix it: a shape, a stride, a null pointer, a NaN scale
  unsupported,       // valid, but no backend here serves it
  out_of_memory,
  device_error,  // the driver, the compiler or the device failed
  io_error,      // a file could not be read or written
};

OCTAVO_API std::string_view name(ErrorCode code);

// Success, or one sentence that names the argument, its value and what is supported.
class [[nodiscard]] OCTAVO_API Status final : public std::exception {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::ok; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_ = ErrorCode::ok;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    if (!value_) throw status_;
    return *value_;
  }
  const T& value() const& {
    if (!value_) throw status_;
    return *value_;
  }
  T&& value() && {
    if (!value_) throw status_;
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// ---------------------------------------------------------------------------------------------
// Numbers

enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  e4m3,  // 8 bits, largest 448, no infinity
  e5m2,  // 8 bits, largest finite 57344
  int8,  // x = code * scale, codes -127 to 127
  sim8,  // uint8 codes, zero at 128: x = (code - 128) / 127 * scale, scale = amax
};
inline constexpr std::array kAllDTypes = {DType::f32,  DType::f16,  DType::bf16, DType::e4m3,
                                          DType::e5m2, DType::int8, DType::sim8};

OCTAVO_API std::string_view name(DType dtype);
OCTAVO_API Result<DType> parse_dtype(std::string_view text);
constexpr std::size_t size_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype <= DType::bf16 ? 2 : 1;
}
constexpr bool is_8bit(DType dtype) { return dtype >= DType::e4m3; }

// How many values share a scale. Shapes of the scale array, for a tensor (B, H, S, D):
enum class Granularity : std::uint8_t {
  tensor,   // (1)
  head,     // (B, H)
  block,    // (B, H, ceil(S / block_rows))
  row,      // (B, H, S)
  channel,  // (B, H, D)
};
inline constexpr std::array kAllGranularities = {Granularity::tensor, Granularity::head,
                                                 Granularity::block, Granularity::row,
                                                 Granularity::channel};
OCTAVO_API std::string_view name(Granularity granularity);
OCTAVO_API Result<Granularity> parse_granularity(std::string_view text);

// ---------------------------------------------------------------------------------------------
// Tensors

namespace detail {
// Strides of a shape that is too large wrap instead of overflowing; validation refuses the shape.
constexpr std::int64_t times(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}
}  // namespace detail

// A view of (batch, heads, rows, columns) with strides in elements; the last stride must be 1.
// Whatever the memory layout, the order of the dimensions here is this one.
template <class Void>
struct BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  // Memory order (batch, heads, rows, columns), contiguous.
  static BasicTensor bhsd(Void* pointer, DType type, std::int64_t b, std::int64_t h, std::int64_t s,
                          std::int64_t d) {
    return {pointer,
            type,
            {b, h, s, d},
            {detail::times(h, detail::times(s, d)), detail::times(s, d), d, 1}};
  }
  // Memory order (batch, rows, heads, columns), contiguous.
  static BasicTensor bshd(Void* pointer, DType type, std::int64_t b, std::int64_t h, std::int64_t s,
                          std::int64_t d) {
    return {pointer,
            type,
            {b, h, s, d},
            {detail::times(s, detail::times(h, d)), d, detail::times(h, d), 1}};
  }
  // Packed batch: memory order (tokens, heads, columns), contiguous; batch is 1.
  static BasicTensor packed(Void* pointer, DType type, std::int64_t tokens, std::int64_t h,
                            std::int64_t d) {
    return bshd(pointer, type, 1, h, tokens, d);
  }

  operator BasicTensor<const void>() const {  // NOLINT(google-explicit-constructor)
    return {data, dtype, shape, stride};
  }
};
using Tensor = BasicTensor<void>;
using ConstTensor = BasicTensor<const void>;

// Scales of an 8-bit tensor. Without strides the array is contiguous in the shape of its
// granularity. In a packed batch, row scales are indexed by token with batch 0; head, channel and
// block scales by sequence, blocks counted inside the sequence.
struct Scales {
  const float* data = nullptr;
  Granularity granularity = Granularity::head;
  std::int64_t block_rows = 64;                         // block granularity only
  std::optional<std::array<std::int64_t, 3>> stride{};  // (batch, head, index), in elements
  // The caller's word that no code's magnitude exceeds this; 0: any code of the format may come.
  // Q's and K's let a GPU add up scores in FP16, where head_dim times both stays within 65504.
  // Nobody checks it: a larger code may make an infinity of its row.
  float largest_code = 0;
};

// How V lies in memory.
enum class VLayout : std::uint8_t {
  rows,  // (B, H, S, D), as K
  // (B, H, D, transposed_columns(S)), in 8 bits alone: a column's keys side by side, each sixteen
  // in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, zero codes for those that the last lacks.
  // Of int8 all bytes have their sign bit flipped: a code of 0 is 128. Hopper's 8-bit kernels read
  // it as it is, where rows cost a pass over V in every call.
  transposed,
};
inline constexpr std::array kAllVLayouts = {VLayout::rows, VLayout::transposed};
OCTAVO_API std::string_view name(VLayout layout);
OCTAVO_API Result<VLayout> parse_v_layout(std::string_view text);

// Bytes of a column of a transposed V: of so many keys, or of the tokens of a packed batch of so
// many sequences, each of which begins with a sixteen of its own. 0 where an argument is negative
// or the result is too large for the type.
OCTAVO_API std::int64_t transposed_columns(std::int64_t keys, std::int64_t sequences = 0);
// There: where sequence `number` lies in a column, if its first token is `begin`; 0 as above.
OCTAVO_API std::int64_t transposed_begin(std::int64_t begin, std::int64_t number);

// ---------------------------------------------------------------------------------------------
// What to compute

// Row i of the queries sees key j if j <= i (top_left, as PyTorch), or if
// j <= i + len_kv - len_q (bottom_right: the last query sees the last key).
enum class Causal : std::uint8_t { none, top_left, bottom_right };
OCTAVO_API std::string_view name(Causal causal);
OCTAVO_API Result<Causal> parse_causal(std::string_view text);

enum class Precision : std::uint8_t {
  native,      // as the inputs are: no further rounding of Q, K, V
  fp16,        // Q, K, V rounded to fp16 first
  bf16,        // Q, K, V rounded to bf16 first
  fp8,         // QK and PV in E4M3
  fp8_mixed,   // QK in E4M3, PV in 16 bits
  fp8_fast,    // as fp8, exp by code arithmetic
  int8,        // QK and PV in INT8
  int8_mixed,  // QK in INT8, PV in 16 bits
  sim8,        // QK and PV from sim8 codes
  // "auto": of those above, the fastest on record whose worst error on record, over all
  // distributions, is within Options::max_error. A plan settles which; explain() says why.
  automatic,
};
// All that are computed as they are.
inline constexpr std::array kAllPrecisions = {
    Precision::native, Precision::fp16,       Precision::bf16,
    Precision::fp8,    Precision::fp8_mixed,  Precision::fp8_fast,
    Precision::int8,   Precision::int8_mixed, Precision::sim8};
OCTAVO_API std::string_view name(Precision precision);
OCTAVO_API Result<Precision> parse_precision(std::string_view text);

enum class ScaleRule : std::uint8_t {
  amax,           // the largest magnitude maps to the largest code
  least_squares,  // the scale of the smallest squared error, by a fixed search below amax
};
OCTAVO_API std::string_view name(ScaleRule rule);
OCTAVO_API Result<ScaleRule> parse_scale_rule(std::string_view text);

// How an 8-bit precision quantizes 16- and 32-bit inputs. Unset granularities take the mode's
// default: rows for Q, blocks (int8) or heads (fp8) for K and channels for V; heads for sim8. The
// CPU takes every granularity for every operand.
struct Quantization {
  std::optional<Granularity> qk{};
  std::optional<Granularity> v{};
  std::int64_t block_rows = 64;
  ScaleRule rule = ScaleRule::amax;  // the one scale of a whole packed batch is by amax always
  bool smooth_k = false;             // subtract the mean key of each sequence and head
  bool hadamard = false;             // rotate Q and K by a Hadamard matrix of the head dimension
  bool operator==(const Quantization&) const = default;
};

// The part of a call that a plan fixes beside types and sizes.
struct Options {
  Causal causal = Causal::none;
  // Keys left and right of the diagonal that a row sees; -1: no limit. The diagonal is that of
  // `causal`, and bottom_right where causal is none.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  Precision precision = Precision::native;
  float max_error = 0;  // of Precision::automatic: of an output, for inputs of about unit variance
  Quantization quantization{};
  bool batch_invariant = false;  // a row's bits do not depend on its company in the batch
  // On a GPU the kernel may start before what precedes it in the stream has ended, whose results it
  // waits for itself; where a kernel cannot, it starts as always.
  bool overlap_launch = false;
  bool operator==(const Options&) const = default;
};

// Pointers, strides and lengths: what may change from run to run.
struct Arguments {
  ConstTensor q{};  // (B, Hq, Sq, D)
  ConstTensor k{};  // (B, Hkv, Skv, D), Hkv divides Hq
  ConstTensor v{};  // (B, Hkv, Skv, D), or as v_layout has it
  Tensor out{};     // (B, Hq, Sq, D), f32, f16, bf16, e4m3, e5m2 or int8
  Tensor lse{};     // (B, Hq, Sq, 1), f32, natural logarithm; no data: not wanted

  std::optional<float> scale{};  // of Q K^T; 1/sqrt(D) if unset

  // Of 8-bit inputs; required for those, ignored for others. V's follow its keys and columns,
  // however they lie.
  Scales q_scales{}, k_scales{}, v_scales{};
  VLayout v_layout = VLayout::rows;

  // Of an 8-bit output, required there: of the tensor or of each head. An input: out = code *
  // scale, rounded to nearest even and cut at the largest code, as quantize() does by scales it is
  // given.
  Scales out_scales{};
  // Gets the largest finite |out| before that rounding, 0 where there is no row; null: not wanted.
  // Contiguous floats on the device: one, or where out_scales are of heads one of each, (B, Hq).
  float* out_amax = nullptr;

  // Packed batches, where the arrays are given: sequence b holds tokens [cu[b], cu[b+1]) of a
  // tensor with B = 1. Arrays of sequences + 1 entries on the device; contents are clamped to the
  // tensor, not trusted. Decreasing ones are refused on the CPU; on a GPU a sequence that begins
  // before an earlier entry is empty.
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_kv = nullptr;
  std::int64_t sequences = 0;
  std::int64_t max_len_q = 0;  // longer sequences are cut to these
  std::int64_t max_len_kv = 0;
};

// What a plan fixes: types, head dimension, head ratio, kind of mask, and a class of lengths.
struct Problem {
  std::int64_t batch = 0;  // sequences, where packed
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t len_q = 0;  // the maximum, where packed
  std::int64_t len_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;  // reserved: must equal head_dim
  DType q = DType::f16;
  DType k = DType::f16;
  DType v = DType::f16;
  DType out = DType::f16;
  Granularity q_scales = Granularity::head;  // of 8-bit inputs
  Granularity k_scales = Granularity::head;
  Granularity v_scales = Granularity::head;
  std::int64_t k_block_rows = 64;  // of a block, where K has a scale for each
  // of an 8-bit output, and of out_amax: tensor or head; tensor of all others
  Granularity out_scales = Granularity::tensor;
  VLayout v_layout = VLayout::rows;
  float q_largest_code = 0;  // of 8-bit inputs; 0: that of the format
  float k_largest_code = 0;
  bool lse = false;
  bool out_amax = false;
  bool packed = false;
  Options options{};
  bool operator==(const Problem&) const = default;
};

// Checks every argument; the Problem they pose.
OCTAVO_API Result<Problem> problem_of(const Arguments& arguments, const Options& options = {});

// "B=1 Hq=8 Hkv=8 Sq=512 Skv=512 D=64 f16 causal=top_left", for tables and logs.
OCTAVO_API std::string describe(const Problem& problem);

// ---------------------------------------------------------------------------------------------
// Where to compute it

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, emulator };
  Kind kind = Kind::cpu;
  int index = 0;  // which GPU; of the emulator which chip: 0 for sm_89, 90 for sm_90
  bool operator==(const Device&) const = default;
};
OCTAVO_API std::string name(Device device);                     // "cpu", "cuda:0"
OCTAVO_API Result<Device> parse_device(std::string_view text);  // also "auto": the best present

struct DeviceInfo {
  Device device{};
  std::string description;  // one line: model, threads or SMs, instruction set
  bool available = false;
  std::string reason;  // why it is not available
};
OCTAVO_API std::vector<DeviceInfo> devices();

using Stream = void*;  // a CUstream on a GPU; ignored by the CPU

// Memory of a device, freed with its last copy. Copies to and from it are finished when they
// return; one from it comes after the work of the stream it is given.
class OCTAVO_API Buffer {
 public:
  class Impl;
  Buffer() = default;  // of no bytes
  explicit Buffer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  static Result<Buffer> make(Device device, std::size_t bytes);  // 256-byte aligned
  void* data() const;
  std::size_t bytes() const;
  Status upload(const void* from, std::size_t bytes, std::size_t offset = 0) const;
  Status download(void* to, std::size_t bytes, std::size_t offset = 0,
                  Stream stream = nullptr) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

// Waits for all work of a stream of the device.
OCTAVO_API Status synchronize(Device device, Stream stream = nullptr);

struct Workspace {
  void* data = nullptr;  // 64-byte aligned, on the device
  std::size_t bytes = 0;
};

struct Explanation {
  std::string device;
  std::string kernel;  // which kernel would run
  std::string config;  // its configuration, as text
  std::string reason;  // why this one
  std::size_t workspace_bytes = 0;
  std::optional<double> measured_us{};  // on record for this device
  std::optional<double> max_error{};    // bound on record for this mode
};

class OCTAVO_API Plan {
 public:
  class Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  const Problem& problem() const;
  Explanation explain() const;

  // Bytes `run` needs for these lengths; no more than for the plan's own when none is longer and
  // packed tensors have no more tokens than their sequences at full length. The answer does not
  // change: on a CPU there is room for as many threads as there were when the plan was made. A run
  // in a larger workspace uses more threads, if there are more.
  std::size_t workspace_bytes() const;
  std::size_t workspace_bytes(const Arguments& arguments) const;

  // Allocates nothing (but for the search of ScaleRule::least_squares on a CPU), synchronises
  // nothing on a GPU, may be called from many threads at once (each with its own workspace).
  Status run(const Arguments& arguments, Workspace workspace = {}, Stream stream = nullptr) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

OCTAVO_API Result<Plan> plan(const Problem& problem, Device device = {});

// One call: checks, plans (once per problem and device), allocates the workspace, runs.
OCTAVO_API Status attention(const Arguments& arguments, const Options& options = {},
                            Device device = {}, Stream stream = nullptr);

// The same for arguments in host memory, whatever the device: copies what it needs there, runs,
// waits, and copies out, lse and out_amax back.
OCTAVO_API Status attention_from_host(const Arguments& arguments, const Options& options = {},
                                      Device device = {});

OCTAVO_API Result<Explanation> explain(const Problem& problem, Device device = {});

// Worker threads of the CPU backend; 0: one per core this process may use (the default). Results do
// not depend on their number.
OCTAVO_API Status set_cpu_threads(int threads);

// ---------------------------------------------------------------------------------------------
// Quantization

// Range statistics of one quantized tensor.
struct RangeStats {
  double amax = 0;              // largest finite magnitude
  double clipped_fraction = 0;  // values beyond the largest code
  double flushed_fraction = 0;  // nonzero values that became the zero code
  double sqnr_db = 0;           // 10 log10(sum x^2 / sum (x - dequantized)^2); inf when exact
  std::int64_t values = 0;
  std::int64_t nan_values = 0;
  std::int64_t inf_values = 0;
};

struct QuantizeOptions {
  Granularity granularity = Granularity::head;
  std::int64_t block_rows = 64;
  ScaleRule rule = ScaleRule::amax;
  bool smooth = false;             // subtract the mean row of each (batch, head) first
  bool hadamard = false;           // then rotate rows by a Hadamard matrix
  bool scales_given = false;       // `scales` is an input: from the caller or a calibration
  VLayout layout = VLayout::rows;  // of the codes
  // The code that the largest magnitude of a group becomes; 0: the format's largest. Small ones
  // cost FP8 nothing, and int8 its steps; Scales::largest_code is what it is for.
  float largest_code = 0;
};

// How many scales a tensor of this shape has; 0 where a size is negative or the count is too large
// for the type: no tensor has that shape.
OCTAVO_API std::int64_t scale_count(const std::array<std::int64_t, 4>& shape,
                                    Granularity granularity, std::int64_t block_rows = 64);

// x: f32, f16 or bf16; codes: an 8-bit tensor of the same shape, or of the one that options.layout
// gives it. `scales` is contiguous, of scale_count() floats; `mean` (B, H, D) is written when
// smoothing. A group whose amax is 0 gets scale 1.0 and zero codes. By given scales a code is the
// nearest; by those found here FP8 makes up for what nearest loses on average, 7e-4 of a value in
// e4m3 and 2.8e-3 in e5m2 (docs/precision.md). amax is taken over finite values; Inf saturates; NaN
// becomes the NaN code, or the zero code where the format has none.
OCTAVO_API Status quantize(const ConstTensor& x, const QuantizeOptions& options,
                           const Tensor& codes, float* scales, float* mean = nullptr,
                           RangeStats* stats = nullptr);

// The inverse, without undoing rotation or smoothing. out: f32, f16 or bf16.
OCTAVO_API Status dequantize(const ConstTensor& codes, const Scales& scales, const Tensor& out);

// Plain conversion between any two of f32, f16 and bf16, to nearest even.
OCTAVO_API Status convert(const ConstTensor& in, const Tensor& out);

// Ranges gathered over several tensors (a calibration set), by tensor name.
class OCTAVO_API Calibration {
 public:
  struct Entry {
    std::string name;
    DType format = DType::e4m3;
    Granularity granularity = Granularity::head;
    std::int64_t block_rows = 64;
    std::array<std::int64_t, 4> shape{};
    std::int64_t tensors = 0;  // how many were observed
    std::vector<float> amax;   // running maximum, one per scale
  };

  // Widens the range of `name` by x. Every tensor of one name needs the same number of scales.
  Status observe(std::string_view name, const ConstTensor& x, DType format,
                 const QuantizeOptions& options);
  Result<std::vector<float>> scales(std::string_view name) const;
  const std::vector<Entry>& entries() const { return entries_; }

  Status save(const std::string& path) const;  // JSON, written whole or not at all
  static Result<Calibration> load(const std::string& path);

 private:
  std::vector<Entry> entries_;
};

OCTAVO_API std::string_view version();

}  // namespace octavo
