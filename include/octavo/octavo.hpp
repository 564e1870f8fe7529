// SPDX-License-Identifier: Apache-2.0
// Octavo: fused scaled-dot-product attention, O = softmax(scale * Q K^T + mask) V.
//
// A call goes through these steps:
//   Arguments + Options -> Problem (what a plan fixes) -> plan() -> Plan -> Plan::run() -> Status
// attention() does all of them in one call and caches the plans.
//
// A function that returns a Status or a Result does not throw; if an allocation fails, the status
// is out_of_memory. Result<T>::value() throws the Status of a failed result. A function that
// returns text or a list by value (describe(), name(Device), devices(), Plan::explain()) may throw
// std::bad_alloc. A failed call writes nothing. docs/promises.md lists all guarantees.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
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
  unsupported,       // valid, but no backend of this build supports it
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
  e4m3,     // 8 bits, largest 448, no infinity
  e5m2,     // 8 bits, largest finite 57344
  int8,     // x = stored * scale, stored values -127 to 127
  sim8,     // stored as uint8, zero is 128: x = (stored - 128) / 127 * scale, scale = amax
  boolean,  // one byte, 0 or 1: of Arguments::mask only
  int4,     // two values a byte: of K and V of a paged cache only, see GroupScales
};
// Every type of numbers.
inline constexpr std::array kAllDTypes = {DType::f32,  DType::f16,  DType::bf16, DType::e4m3,
                                          DType::e5m2, DType::int8, DType::sim8};

OCTAVO_API std::string_view name(DType dtype);
OCTAVO_API Result<DType> parse_dtype(std::string_view text);
constexpr std::size_t size_bytes(DType dtype) {
  return dtype == DType::f32 ? 4 : dtype <= DType::bf16 ? 2 : 1;
}
constexpr bool is_8bit(DType dtype) { return dtype >= DType::e4m3 && dtype <= DType::sim8; }

// Which values share a scale. The comments give the shape of the scale array for a tensor (B, H, S,
// D).
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

// A view of (batch, heads, seqlen, head_dim) with strides in elements; the last stride must be 1.
// The dimensions are in this order whatever the memory layout is.
template <class Void>
struct BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  // Memory order (batch, heads, seqlen, head_dim), contiguous.
  static BasicTensor bhsd(Void* pointer, DType type, std::int64_t b, std::int64_t h, std::int64_t s,
                          std::int64_t d) {
    return {pointer,
            type,
            {b, h, s, d},
            {detail::times(h, detail::times(s, d)), detail::times(s, d), d, 1}};
  }
  // Memory order (batch, seqlen, heads, head_dim), contiguous.
  static BasicTensor bshd(Void* pointer, DType type, std::int64_t b, std::int64_t h, std::int64_t s,
                          std::int64_t d) {
    return {pointer,
            type,
            {b, h, s, d},
            {detail::times(s, detail::times(h, d)), d, detail::times(h, d), 1}};
  }
  // Varlen batch: memory order (tokens, heads, head_dim), contiguous; batch is 1.
  static BasicTensor varlen(Void* pointer, DType type, std::int64_t tokens, std::int64_t h,
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
// granularity. In a varlen batch, row scales are indexed by token with batch 0; head, channel and
// block scales are indexed by sequence, and blocks are counted from the start of the sequence.
struct Scales {
  const float* data = nullptr;
  Granularity granularity = Granularity::head;
  std::int64_t block_rows = 64;                         // block granularity only
  std::optional<std::array<std::int64_t, 3>> stride{};  // (batch, head, index), in elements
  // The caller promises that no quantized value exceeds this magnitude; 0: no promise. If head_dim
  // times Q's and K's bounds is at most 65504, a GPU may accumulate scores in FP16. The promise is
  // not checked: a larger value may turn its row into infinities.
  float max_quantized = 0;
};

// Scales and zeros of the int4 keys or values of a paged cache. A group of neighbouring channels of
// a key shares a pair:
//
//   x = scale * n + zero       n = 0 ... 15
//
// The array is f16, contiguous and 16-byte aligned, of shape (pages, Hkv, 2, D / channels,
// page_size): for each page and head first the scales, then the zeros. An int4 tensor counts bytes:
// its last dimension is D / 2, and its strides are bytes. Eight channels take four bytes: the low
// halves of the bytes hold channels 0, 4, 1 and 5, the high halves channels 2, 6, 3 and 7.
struct GroupScales {
  const void* data = nullptr;
  std::int64_t channels = 64;  // of a group: 32 or 64, a divisor of D
};

// The memory layout of V.
enum class VLayout : std::uint8_t {
  rows,  // (B, H, S, D), as K
  // (B, H, D, transposed_columns(S)), 8-bit types only: the keys of one channel are contiguous,
  // each group of 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and the last group is
  // padded with zeros. int8 is stored with its sign bit flipped, so that 0 is stored as 128.
  // Hopper's 8-bit kernels read this layout directly; `rows` costs a pass over V in every call.
  transposed,
};
inline constexpr std::array kAllVLayouts = {VLayout::rows, VLayout::transposed};
OCTAVO_API std::string_view name(VLayout layout);
OCTAVO_API Result<VLayout> parse_v_layout(std::string_view text);

// The bytes of one channel of a transposed V. In a varlen batch (`sequences` > 0) `keys` is the
// number of tokens, and each sequence starts a new group of 16. The result is 0 if an argument is
// negative or the size overflows.
OCTAVO_API std::int64_t transposed_columns(std::int64_t keys, std::int64_t sequences = 0);
// The offset of sequence `number` in such a channel if its first token is `begin`; 0 on the same
// errors.
OCTAVO_API std::int64_t transposed_begin(std::int64_t begin, std::int64_t number);

// ---------------------------------------------------------------------------------------------
// What to compute

// Query row i attends to key j if j <= i (top_left, as PyTorch), or if
// j <= i + seqlen_kv - seqlen_q (bottom_right: the last query attends to the last key).
enum class Causal : std::uint8_t { none, top_left, bottom_right };
OCTAVO_API std::string_view name(Causal causal);
OCTAVO_API Result<Causal> parse_causal(std::string_view text);

enum class Precision : std::uint8_t {
  native,      // the dtype of the inputs: no further rounding of Q, K, V
  fp16,        // Q, K, V rounded to fp16 first
  bf16,        // Q, K, V rounded to bf16 first
  fp8,         // QK and PV in E4M3
  fp8_mixed,   // QK in E4M3, PV in 16 bits
  fp8_fast,    // as fp8, with exp computed by integer arithmetic on the 8-bit value
  int8,        // QK and PV in INT8
  int8_mixed,  // QK in INT8, PV in 16 bits
  sim8,        // QK and PV from sim8 values
  // "auto": of the modes above whose worst recorded error over all distributions is within
  // Options::max_error, the one with the shortest recorded time. The plan picks it; explain() says
  // why.
  automatic,
};
// Every precision except `automatic`.
inline constexpr std::array kAllPrecisions = {
    Precision::native, Precision::fp16,       Precision::bf16,
    Precision::fp8,    Precision::fp8_mixed,  Precision::fp8_fast,
    Precision::int8,   Precision::int8_mixed, Precision::sim8};
OCTAVO_API std::string_view name(Precision precision);
OCTAVO_API Result<Precision> parse_precision(std::string_view text);

enum class ScaleRule : std::uint8_t {
  amax,           // the largest magnitude maps to the largest value of the format
  least_squares,  // the scale of the smallest squared error, by a fixed search below amax
};
OCTAVO_API std::string_view name(ScaleRule rule);
OCTAVO_API Result<ScaleRule> parse_scale_rule(std::string_view text);

// How an 8-bit precision quantizes 16- and 32-bit inputs. The default granularities depend on the
// precision: row for Q, block (int8) or head (fp8) for K and channel for V; head for sim8. The CPU
// supports every granularity for every operand.
struct Quantization {
  std::optional<Granularity> qk{};
  std::optional<Granularity> v{};
  std::int64_t block_rows = 64;
  ScaleRule rule = ScaleRule::amax;  // a per-tensor scale of a varlen batch always uses amax
  bool smooth_k = false;             // subtract the mean key of each sequence and head
  bool hadamard = false;             // rotate Q and K by a Hadamard matrix of the head dimension
  bool operator==(const Quantization&) const = default;
};

// What a plan fixes in addition to types and sizes.
struct Options {
  Causal causal = Causal::none;
  // How many keys left and right of the diagonal a row attends to; -1: no limit. The diagonal is
  // that of `causal`, or bottom_right if causal is none.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  // Scores become softcap * tanh(score / softcap) before bias and ALiBi are added; 0: no softcap.
  float softcap = 0;
  Precision precision = Precision::native;
  float max_error = 0;  // for Precision::automatic: of an output, for inputs of about unit variance
  Quantization quantization{};
  bool batch_invariant = false;  // a row's bits do not depend on the rest of the batch
  // On a GPU the kernel may start before the preceding kernel of the stream ends (programmatic
  // dependent launch), and itself waits for the results of that one. Kernels without support ignore
  // it.
  bool overlap_launch = false;
  // On a GPU, the number of SMs that a persistent kernel leaves free, e.g. for communication. It
  // must be less than the number of SMs. Kernels that launch one CTA for each tile, the backward
  // pass and the CPU ignore it.
  std::int64_t sm_margin = 0;
  bool operator==(const Options&) const = default;
};

// Which blocks of keys each block of queries attends to, in the layout of PyTorch's FlexAttention:
// a block is block_size queries by block_size keys, counted from the first of the tensors. Two
// lists for each block of queries name the blocks of keys that it sees; bits, the causal mask and
// the window may hide keys of these. The arrays are contiguous and on the device. Their contents
// are not trusted but clamped; the CPU refuses indices out of range, out of order or in both lists.
struct BlockMask {
  std::int64_t block_size = 0;        // 64 or 128; 0: no block mask
  std::int64_t batch = 1, heads = 1;  // of the arrays: those of q, or 1, which holds for all
  std::int64_t q_blocks = 0;          // ceil(Sq / block_size)
  const std::int32_t* kv_num_blocks = nullptr;  // partial blocks: (batch, heads, q_blocks)
  const std::int32_t* kv_indices = nullptr;     // (batch, heads, q_blocks, kv_capacity)
  std::int64_t kv_capacity = 0;
  const std::int32_t* full_kv_num_blocks = nullptr;  // blocks without bits, likewise; null: none
  const std::int32_t* full_kv_indices = nullptr;
  std::int64_t full_kv_capacity = 0;
  // The bits of partial blocks: bit j % 32 of word j / 32 of a row is set if the query sees key j
  // of the block. bit_indices says which entry of `bits` a partial block has. Null: partial blocks
  // are cut by the causal mask and the window alone.
  const std::int32_t* bit_indices = nullptr;  // as kv_indices
  const std::uint32_t* bits =
      nullptr;  // (bit_blocks, block_size, block_size / 32), 16-byte aligned
  std::int64_t bit_blocks = 0;
};

// Pointers, strides and lengths. They may change from run to run.
struct Arguments {
  ConstTensor q{};  // (B, Hq, Sq, D)
  ConstTensor k{};  // (B, Hkv, Skv, D), Hkv divides Hq
  ConstTensor v{};  // (B, Hkv, Skv, Dv), or the shape that v_layout gives
  Tensor out{};     // (B, Hq, Sq, Dv), f32, f16, bf16, e4m3, e5m2 or int8
  Tensor lse{};     // (B, Hq, Sq, 1), f32, natural logarithm; null data: not computed

  std::optional<float> scale{};  // softmax scale; 1/sqrt(D) if unset

  // Required for 8-bit inputs, ignored for others. v_scales are indexed by key and channel, in
  // either layout of V.
  Scales q_scales{}, k_scales{}, v_scales{};
  VLayout v_layout = VLayout::rows;

  // An input, required for an 8-bit output: per tensor or per head. out is divided by the scale,
  // rounded to nearest even and saturated, as quantize() does with given scales.
  Scales out_scales{};
  // Receives the largest finite |out| before that rounding, or 0 if there are no rows; null: not
  // computed. Contiguous floats on the device: one, or (B, Hq) if out_scales are per head.
  float* out_amax = nullptr;

  // Varlen batch, if not null: sequence b holds tokens [cu[b], cu[b+1]) of a tensor with B = 1. The
  // arrays have sequences + 1 entries on the device. Their contents are not trusted but clamped to
  // the tensor. The CPU refuses entries that decrease; on a GPU a sequence that begins before an
  // earlier entry is empty.
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_kv = nullptr;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen_q = 0;  // longer sequences are truncated to these
  std::int64_t max_seqlen_kv = 0;

  // Padded batch, if any of these is not null: sequence b holds rows [leftpad[b], leftpad[b] +
  // seqlens[b]) of its batch entry, and the others are padding. Arrays of B entries on the device;
  // null leftpad: 0; null seqlens: all rows behind the padding on the left. Contents are clamped to
  // the tensor; the CPU refuses those outside. Masks count from the first row of the sequence.
  // Padding of q gets output 0 and lse -infinity. Padding of k and v is not read. Cannot be
  // combined with cu_seqlens.
  const std::int32_t* seqlens_q = nullptr;
  const std::int32_t* seqlens_kv = nullptr;
  const std::int32_t* leftpad_q = nullptr;
  const std::int32_t* leftpad_kv = nullptr;

  // Paged KV cache, if not null: k and v are (pages, Hkv, page_size, D), and key j of sequence b is
  // row j % page_size of page page_table[b * page_table_stride + j / page_size]. The strides give
  // the layout of the cache. page_size is a multiple of 16 from 16 to 256. seqlens_kv is required
  // and holds at most pages_per_sequence * page_size; rows and pages beyond a length are not read.
  // The table is on the device. Its entries and the lengths are clamped; the CPU refuses those
  // outside. Scales of an 8-bit cache are per tensor, per head (1, Hkv), per row (pages, Hkv,
  // page_size), or per block of page_size rows (pages, Hkv, 1). Q has 16 or 32 bits, and causal is
  // none or bottom_right. Cannot be combined with cu_seqlens, leftpad_kv, bias or mask.
  const std::int32_t* page_table = nullptr;
  std::int64_t page_table_stride = 0;   // entries from one sequence to the next
  std::int64_t pages_per_sequence = 0;  // entries of a sequence

  // Changes to the scores s = scale * q k, in this order: softcap (Options), bias, ALiBi, mask.
  // Bias and mask are indexed by rows of the tensors, padding included. They broadcast to (B, Hq,
  // Sq, Skv): each of their dimensions is that one or 1. Cannot be combined with cu_seqlens.
  ConstTensor bias{};  // f16, bf16 or f32, added to s; -infinity hides a key; null data: none
  ConstTensor mask{};  // boolean: 0 hides the key; null data: none
  // ALiBi: s -= slope * |diagonal - key|, where the diagonal is that of the window. Hq floats on
  // the device for each sequence, alibi_batch_stride floats apart; 0: the same for all.
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;
  // Attention sinks: Hq floats on the device. exp(sink) is added to the denominator of the softmax,
  // and lse includes it.
  const float* sinks = nullptr;
  // Block-sparse attention, if block_size is not 0: hidden blocks cost nothing. Cannot be combined
  // with cu_seqlens, padding or a paged cache.
  BlockMask block_mask{};
  GroupScales k_groups{}, v_groups{};  // required for int4 K and V, ignored for others
  // A draft tree of speculative decoding, if not null: the last keys of a sequence are those of its
  // queries, and query i sees the key of query j only if bit j of word i is set. A causal mask or
  // window hides further keys. B x Sq words on the device; Sq is at most 32. Cannot be combined
  // with cu_seqlens or a block mask, nor on a GPU with bias or mask.
  const std::int32_t* draft_tree = nullptr;
};

// What a plan fixes: types, head dimensions, head ratio, mask, and the largest lengths.
struct Problem {
  std::int64_t batch = 0;  // the number of sequences in a varlen batch
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t seqlen_q = 0;  // the maximum in a varlen batch
  std::int64_t seqlen_kv = 0;
  std::int64_t head_dim = 0;    // columns of Q and K
  std::int64_t head_dim_v = 0;  // columns of V and the output; often equal to head_dim
  DType q = DType::f16;
  DType k = DType::f16;
  DType v = DType::f16;
  DType out = DType::f16;
  Granularity q_scales = Granularity::head;  // for 8-bit inputs
  Granularity k_scales = Granularity::head;
  Granularity v_scales = Granularity::head;
  std::int64_t k_block_rows = 64;  // keys per scale if k_scales is block
  // for an 8-bit output and for out_amax: tensor or head; otherwise tensor
  Granularity out_scales = Granularity::tensor;
  VLayout v_layout = VLayout::rows;
  float q_max_quantized = 0;  // for 8-bit inputs, as Scales::max_quantized
  float k_max_quantized = 0;
  bool lse = false;
  bool out_amax = false;
  bool varlen = false;         // a varlen batch
  bool padded = false;         // a padded batch; with a paged cache: padding in q
  bool paged = false;          // a paged KV cache: seqlen_kv is pages_per_sequence * page_size
  std::int64_t page_size = 0;  // of a paged KV cache
  std::int64_t kv_group = 0;   // channels that share a scale of an int4 cache: 32 or 64
  std::optional<DType> bias{};
  bool mask = false;
  bool alibi = false;
  bool sinks = false;
  std::int64_t block_mask = 0;  // the size of its blocks; 0: none
  bool draft_tree = false;
  Options options{};
  bool operator==(const Problem&) const = default;
};

// Checks every argument and returns the Problem that they describe.
OCTAVO_API Result<Problem> problem_of(const Arguments& arguments, const Options& options = {});

// The backward pass computes the gradients of a loss with respect to Q, K, V, the bias and the
// sinks from its gradient with respect to the output. All tensors except lse, bias, dbias and mask
// have the same dtype, f32, f16 or bf16. Each tensor has its own strides.
struct BackwardArguments {
  ConstTensor q{};     // (B, Hq, Sq, D), as in the forward pass
  ConstTensor k{};     // (B, Hkv, Skv, D)
  ConstTensor v{};     // (B, Hkv, Skv, D)
  ConstTensor out{};   // (B, Hq, Sq, D), the output of the forward pass
  ConstTensor lse{};   // (B, Hq, Sq, 1), f32, as the forward pass writes it
  ConstTensor dout{};  // (B, Hq, Sq, D), the gradient of out

  // The outputs. Their elements may not overlap each other or an input. dk and dv are sums over the
  // query heads that share a KV head. Padding gets zeros.
  Tensor dq{};  // (B, Hq, Sq, D)
  Tensor dk{};  // (B, Hkv, Skv, D)
  Tensor dv{};  // (B, Hkv, Skv, D)
  // The gradient of bias, in its shape, in f32 or in its dtype; null data: not computed. An entry
  // that is broadcast to several scores gets the sum of their gradients. On a GPU the last two
  // dimensions of bias must be Sq and Skv.
  Tensor dbias{};
  float* dsinks = nullptr;  // Hq floats on the device; null: not computed

  std::optional<float> scale{};  // softmax scale of the forward pass; 1/sqrt(D) if unset

  // Varlen batch, as in Arguments. Rows that belong to no sequence are not written.
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_kv = nullptr;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_kv = 0;

  // Padded batch and changes to the scores, as in Arguments.
  const std::int32_t* seqlens_q = nullptr;
  const std::int32_t* seqlens_kv = nullptr;
  const std::int32_t* leftpad_q = nullptr;
  const std::int32_t* leftpad_kv = nullptr;
  ConstTensor bias{};
  ConstTensor mask{};
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0;
  const float* sinks = nullptr;
  BlockMask block_mask{};
};

// Checks every argument and returns the Problem of the forward pass, with lse. The options are
// those of the forward pass. Precision must be native or the dtype of the tensors, and V must have
// as many columns as Q.
OCTAVO_API Result<Problem> problem_of(const BackwardArguments& arguments,
                                      const Options& options = {});

// Describes a problem for tables and logs, such as "B=1 Hq=8 Hkv=8 Sq=512 Skv=512 D=64 f16
// causal=top_left".
OCTAVO_API std::string describe(const Problem& problem);

// ---------------------------------------------------------------------------------------------
// Where to compute it

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, emulator };
  Kind kind = Kind::cpu;
  int index = 0;  // which GPU; for the emulator the architecture: 0 for sm_89, 90 for sm_90
  bool operator==(const Device&) const = default;
};
OCTAVO_API std::string name(Device device);                     // "cpu", "cuda:0"
OCTAVO_API Result<Device> parse_device(std::string_view text);  // "auto": the best available

struct DeviceInfo {
  Device device{};
  std::string description;  // one line: model, threads or SMs, instruction set
  bool available = false;
  std::string reason;  // why it is not available
};
OCTAVO_API std::vector<DeviceInfo> devices();

using Stream = void*;  // a CUstream on a GPU; ignored by the CPU

// Reference-counted device memory. upload() and download() are synchronous; download() first waits
// for the work of the given stream.
class OCTAVO_API Buffer {
 public:
  class Impl;
  Buffer() = default;  // empty
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
  std::string kernel;  // the kernel that would run
  std::string config;  // its configuration, as text
  std::string reason;  // why this one
  std::size_t workspace_bytes = 0;
  std::optional<double> measured_us{};  // recorded time on this device
  std::optional<double> max_error{};    // recorded error bound of this precision
};

class OCTAVO_API Plan {
 public:
  class Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  const Problem& problem() const;
  Explanation explain() const;

  // The bytes that run() needs for the plan's own lengths, or for the lengths of `arguments`. The
  // second number is no larger than the first if no length is larger and a varlen tensor has at
  // most sequences * max_len tokens. The result is constant: on a CPU it is sized for the number of
  // threads when the plan was made. With a larger workspace a run can use more threads.
  std::size_t workspace_bytes() const;
  std::size_t workspace_bytes(const Arguments& arguments) const;

  // Does not allocate (except for the search of ScaleRule::least_squares on a CPU), does not
  // synchronise a GPU, and may be called from many threads at once, each with its own workspace.
  Status run(const Arguments& arguments, Workspace workspace = {}, Stream stream = nullptr) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

OCTAVO_API Result<Plan> plan(const Problem& problem, Device device = {});

// Checks the arguments, plans (once per problem and device), allocates the workspace and runs.
OCTAVO_API Status attention(const Arguments& arguments, const Options& options = {},
                            Device device = {}, Stream stream = nullptr);

// As attention(), for arguments in host memory on any device: copies the inputs to the device,
// runs, waits, and copies out, lse and out_amax back.
OCTAVO_API Status attention_from_host(const Arguments& arguments, const Options& options = {},
                                      Device device = {});

OCTAVO_API Result<Explanation> explain(const Problem& problem, Device device = {});

// A plan of the backward pass, with the guarantees of Plan. Its results have the same bits in every
// run, for any number of threads.
class OCTAVO_API BackwardPlan {
 public:
  class Impl;
  explicit BackwardPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  const Problem& problem() const;
  Explanation explain() const;
  std::size_t workspace_bytes() const;
  std::size_t workspace_bytes(const BackwardArguments& arguments) const;
  Status run(const BackwardArguments& arguments, Workspace workspace = {},
             Stream stream = nullptr) const;

 private:
  std::shared_ptr<const Impl> impl_;
};

// `problem` is that of the forward pass, with lse: q, k, v and out have one dtype, that of the
// gradients.
OCTAVO_API Result<BackwardPlan> plan_backward(const Problem& problem, Device device = {});
OCTAVO_API Result<Explanation> explain_backward(const Problem& problem, Device device = {});

// Checks the arguments, plans (once per problem and device), allocates the workspace and runs.
OCTAVO_API Status attention_backward(const BackwardArguments& arguments,
                                     const Options& options = {}, Device device = {},
                                     Stream stream = nullptr);

// As attention_backward(), for arguments in host memory on any device: copies the inputs to the
// device, runs, waits, and copies the gradients back.
OCTAVO_API Status attention_backward_from_host(const BackwardArguments& arguments,
                                               const Options& options = {}, Device device = {});

// Merges attention over parts of the keys into attention over all of them:
//
//   lse = log(sum_i exp(lses[i]))      out = sum_i exp(lses[i] - lse) * outs[i]
//
// `outs` are tensors (B, H, S, D) of one shape, f32, f16 or bf16, and `lses` are (B, H, S, 1), f32.
// The parts are added in order, in FP32, so the result has the same bits in every run. If a row
// sees no key of a part (lse -infinity), that part is ignored for the row, whatever it holds. `lse`
// may have null data. The results must not overlap the parts. CPU only.
OCTAVO_API Status merge_states(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses,
                               const Tensor& out, const Tensor& lse = {}, Device device = {},
                               Stream stream = nullptr);

// Worker threads of the CPU backend; 0: one per core this process may use (the default). Results do
// not depend on their number.
OCTAVO_API Status set_cpu_threads(int threads);

// ---------------------------------------------------------------------------------------------
// Quantization

// Range statistics of one quantized tensor.
struct RangeStats {
  double amax = 0;              // largest finite magnitude
  double clipped_fraction = 0;  // values beyond the format's largest
  double flushed_fraction = 0;  // nonzero values that were quantized to zero
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
  VLayout layout = VLayout::rows;  // of the quantized tensor
  // The quantized value of a group's largest magnitude; 0: the format's largest. A small value
  // costs FP8 no accuracy, but costs int8 resolution. It fulfils the promise of
  // Scales::max_quantized.
  float max_quantized = 0;
};

// The number of scales of a tensor of this shape; 0 if a size is negative or the count overflows.
OCTAVO_API std::int64_t scale_count(const std::array<std::int64_t, 4>& shape,
                                    Granularity granularity, std::int64_t block_rows = 64);

// x: f32, f16 or bf16; quantized: the 8-bit result, of the same shape or of the one that
// options.layout gives. `scales` holds scale_count() contiguous floats; `mean` (B, H, D) is written
// when smoothing. A group whose amax is 0 gets scale 1.0 and zeros. With given scales values are
// rounded to nearest. With scales that quantize() computes, FP8 also corrects the mean error of
// rounding to nearest, 7e-4 of a value in e4m3 and 2.8e-3 in e5m2 (docs/precision.md). amax is
// taken over finite values; Inf saturates; NaN becomes NaN, or zero if the format has no NaN.
OCTAVO_API Status quantize(const ConstTensor& x, const QuantizeOptions& options,
                           const Tensor& quantized, float* scales, float* mean = nullptr,
                           RangeStats* stats = nullptr);

// The arguments of quantize() on a device. All pointers are to memory of that device.
struct QuantizeArguments {
  ConstTensor x{};     // (B, H, S, D), or (1, H, tokens, D) in a varlen batch; f32, f16 or bf16
  Tensor quantized{};  // 8-bit, of the same shape or of the one that QuantizeOptions::layout gives
  float* scales = nullptr;  // scale_count() floats, in the order that Scales describes
  float* mean = nullptr;    // (B, H, D), or (sequences, H, D); written when smoothing
  // A varlen batch: where each sequence starts, and where the last one ends, sequences + 1 numbers.
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;  // no sequence is longer
};

// The number of scales that quantize() writes; 0 if a size is negative or the count overflows.
OCTAVO_API std::int64_t scale_count(const QuantizeArguments& arguments,
                                    const QuantizeOptions& options);

// quantize() on a device, in stream order. Results have the same bits as on the CPU. The first call
// of a kind loads kernels and allocates memory, which later calls of the thread on the stream
// reuse. GPUs take head dimensions that are a multiple of 8, up to 256, and results at addresses
// and strides that are multiples of 16 bytes (8 where rows stay rows); they support neither given
// scales nor ScaleRule::least_squares. A varlen batch cannot have one scale per tensor.
OCTAVO_API Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options,
                           Device device, Stream stream = nullptr);

enum class Operand : std::uint8_t { q, k, v };
OCTAVO_API std::string_view name(Operand operand);
OCTAVO_API Result<Operand> parse_operand(std::string_view text);

// How an 8-bit precision quantizes an operand of attention.
struct OperandQuantization {
  DType format = DType::e4m3;
  QuantizeOptions options{};
};

// The quantization with which the fastest kernels of the device read this operand as it is, without
// a pass over it in every call.
OCTAVO_API Result<OperandQuantization> operand_quantization(Operand operand, Precision precision,
                                                            std::int64_t head_dim, Device device);

// The inverse of quantize(), but it does not undo rotation or smoothing. out: f32, f16 or bf16.
OCTAVO_API Status dequantize(const ConstTensor& quantized, const Scales& scales, const Tensor& out);

// Converts between any two of f32, f16 and bf16, rounding to nearest even.
OCTAVO_API Status convert(const ConstTensor& in, const Tensor& out);

// Value ranges collected over several tensors (a calibration set), by tensor name.
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

  // Widens the range of `name` to include x. Every tensor of one name needs the same number of
  // scales.
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
