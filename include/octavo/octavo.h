// SPDX-License-Identifier: Apache-2.0
/* Octavo's C interface: the C++ one (octavo.hpp) with plain structs and an opaque plan.
 *
 * Structs that may grow start with their size: set it with their _init function, so that a newer
 * library can read the layout of an older header. The other structs never change. Functions return
 * OCTAVO_OK or an error, and octavo_last_error() returns its message. Nothing throws, and a failed
 * call writes nothing.
 */
#ifndef OCTAVO_OCTAVO_H
#define OCTAVO_OCTAVO_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define OCTAVO_C_API
#else
#define OCTAVO_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum octavo_status {
  OCTAVO_OK = 0,
  OCTAVO_INVALID_ARGUMENT = 1,
  OCTAVO_UNSUPPORTED = 2,
  OCTAVO_OUT_OF_MEMORY = 3,
  OCTAVO_DEVICE_ERROR = 4,
  OCTAVO_IO_ERROR = 5
} octavo_status;

typedef enum octavo_dtype {
  OCTAVO_F32 = 0,
  OCTAVO_F16 = 1,
  OCTAVO_BF16 = 2,
  OCTAVO_E4M3 = 3,
  OCTAVO_E5M2 = 4,
  OCTAVO_INT8 = 5,
  OCTAVO_SIM8 = 6,
  OCTAVO_BOOL = 7, /* one byte, 0 or 1: of a mask only */
  OCTAVO_INT4 = 8  /* two values a byte: of K and V of a paged cache only */
} octavo_dtype;

typedef enum octavo_granularity {
  OCTAVO_PER_TENSOR = 0,
  OCTAVO_PER_HEAD = 1,
  OCTAVO_PER_BLOCK = 2,
  OCTAVO_PER_ROW = 3,
  OCTAVO_PER_CHANNEL = 4,
  OCTAVO_GRANULARITY_DEFAULT = 255 /* that of the precision; in octavo_options only */
} octavo_granularity;

typedef enum octavo_causal {
  OCTAVO_CAUSAL_NONE = 0,
  OCTAVO_CAUSAL_TOP_LEFT = 1,
  OCTAVO_CAUSAL_BOTTOM_RIGHT = 2
} octavo_causal;

typedef enum octavo_precision {
  OCTAVO_NATIVE = 0,
  OCTAVO_FP16 = 1,
  OCTAVO_BF16_PRECISION = 2,
  OCTAVO_FP8 = 3,
  OCTAVO_FP8_MIXED = 4,
  OCTAVO_FP8_FAST = 5,
  OCTAVO_INT8_PRECISION = 6,
  OCTAVO_INT8_MIXED = 7,
  OCTAVO_SIM8_PRECISION = 8,
  OCTAVO_AUTO = 9 /* the fastest whose worst recorded error is within max_error */
} octavo_precision;

/* The memory layout of V; octavo.hpp describes the transposed one. */
typedef enum octavo_v_layout { OCTAVO_V_ROWS = 0, OCTAVO_V_TRANSPOSED = 1 } octavo_v_layout;

typedef enum octavo_scale_rule { OCTAVO_AMAX = 0, OCTAVO_LEAST_SQUARES = 1 } octavo_scale_rule;

/* A view of (batch, heads, seqlen, head_dim) with strides in elements; the last stride must be 1. V
 * and the output of attention may have another head_dim than Q and K. */
typedef struct octavo_tensor {
  void* data;
  int32_t dtype; /* octavo_dtype */
  int64_t shape[4];
  int64_t stride[4];
} octavo_tensor;

/* Scales of an 8-bit tensor. If all strides are zero, the array is contiguous in the shape of the
 * granularity. */
typedef struct octavo_scales {
  const float* data;
  int32_t granularity; /* octavo_granularity */
  int64_t block_rows;
  int64_t stride[3];
} octavo_scales;

/* Block-sparse attention: lists of the key blocks that each block of queries attends to. Arrays are
 * contiguous and on the device. octavo.hpp describes them. */
typedef struct octavo_block_mask {
  int64_t block_size;           /* 64 or 128; 0: no block mask */
  int64_t batch, heads;         /* of the arrays: those of q, or 1, which holds for all */
  int64_t q_blocks;             /* ceil(Sq / block_size) */
  const int32_t* kv_num_blocks; /* partial blocks: (batch, heads, q_blocks) */
  const int32_t* kv_indices;    /* (batch, heads, q_blocks, kv_capacity) */
  int64_t kv_capacity;
  const int32_t* full_kv_num_blocks; /* blocks without bits; NULL: none */
  const int32_t* full_kv_indices;
  int64_t full_kv_capacity;
  const int32_t* bit_indices; /* as kv_indices: which entry of bits a block has; NULL: no bits */
  const uint32_t* bits;       /* (bit_blocks, block_size, block_size / 32), 16-byte aligned */
  int64_t bit_blocks;
} octavo_block_mask;

/* Which keys each query sees, as octavo::KeyRanges: begin and end are (batch, heads, seqlen_q), on
 * the host. */
typedef struct octavo_key_ranges {
  const int32_t* begin;
  const int32_t* end;
  int64_t batch, heads; /* those of q, or 1, which holds for all */
  int64_t seqlen_q, seqlen_kv;
  int32_t causal; /* octavo_causal */
} octavo_key_ranges;

/* Scales and zeros of int4 keys or values, f16 (pages, Hkv, 2, D / channels, page_size);
 * octavo.hpp describes them. */
typedef struct octavo_group_scales {
  const void* data;
  int64_t channels; /* that share them: 32 or 64 */
} octavo_group_scales;

/* What a plan fixes in addition to types and sizes. octavo_options_init() sets the defaults. */
typedef struct octavo_options {
  size_t size;
  int32_t causal;       /* octavo_causal */
  int64_t window_left;  /* -1: no limit */
  int64_t window_right; /* -1: no limit */
  int32_t precision;    /* octavo_precision */
  int32_t granularity_qk;
  int32_t granularity_v;
  int64_t block_rows;
  int32_t scale_rule; /* octavo_scale_rule */
  int32_t smooth_k;
  int32_t hadamard;
  int32_t batch_invariant;
  int32_t overlap_launch; /* may start before the preceding kernel of the stream ends */
  float max_error;        /* for OCTAVO_AUTO */
  float softcap;          /* scores become softcap * tanh(score / softcap); 0: they stay */
  int32_t sm_margin;      /* on a GPU, SMs that persistent kernels leave free */
} octavo_options;

typedef struct octavo_arguments {
  size_t size;
  octavo_tensor q, k, v;
  octavo_tensor out;
  octavo_tensor lse; /* data NULL: not computed */
  int32_t has_scale; /* 0: scale is 1/sqrt(D) */
  float scale;
  octavo_scales q_scales, k_scales, v_scales; /* for 8-bit inputs */
  const int32_t* cu_seqlens_q;                /* varlen batch: sequences + 1 entries; else NULL */
  const int32_t* cu_seqlens_kv;
  int64_t sequences;
  int64_t max_seqlen_q;
  int64_t max_seqlen_kv;
  /* Paged KV cache: k and v are (pages, heads, page_size, head_dim), and key j of sequence b is row
   * j % page_size of page page_table[b * page_table_stride + j / page_size]; NULL: none. seqlens_kv
   * is required. octavo.hpp describes it. */
  const int32_t* page_table;
  int32_t v_layout;      /* octavo_v_layout */
  float q_max_quantized; /* no quantized value exceeds this magnitude; 0: no promise */
  float k_max_quantized;
  octavo_scales out_scales; /* an input, for an 8-bit output: per tensor or per head */
  float* out_amax;          /* receives the largest |out|, one per out_scale; NULL: not computed */
  /* Padded batch: sequence b holds rows [leftpad[b], leftpad[b] + seqlens[b]); one entry for each
   * batch entry. NULL leftpad: 0; NULL seqlens: all rows behind the padding on the left. */
  const int32_t* seqlens_q;
  const int32_t* seqlens_kv;
  const int32_t* leftpad_q;
  const int32_t* leftpad_kv;
  octavo_tensor bias;         /* added to the scores; each dimension theirs or 1; data NULL: none */
  octavo_tensor mask;         /* OCTAVO_BOOL, 0 hides the key; likewise */
  const float* alibi_slopes;  /* one for each query head; NULL: none */
  int64_t alibi_batch_stride; /* floats from a sequence's slopes to the next; 0: the same */
  const float* sinks;         /* one for each query head; NULL: none */
  int64_t page_table_stride;  /* entries from one sequence to the next */
  int64_t pages_per_sequence; /* entries of a sequence */
  octavo_block_mask block_mask;           /* block_size 0: none */
  octavo_group_scales k_groups, v_groups; /* of int4 K and V */
  /* Bit j of word i of a sequence: query i sees the key of query j; B x Sq words; NULL: none */
  const int32_t* draft_tree;
} octavo_arguments;

/* The backward pass: from dout, the gradient of out, to the gradients of q, k, v, bias and sinks.
 */
typedef struct octavo_backward_arguments {
  size_t size;
  octavo_tensor q, k, v;
  octavo_tensor out, lse; /* of the forward pass */
  octavo_tensor dout;
  octavo_tensor dq, dk, dv; /* written */
  int32_t has_scale;        /* 0: scale is 1/sqrt(D) */
  float scale;
  const int32_t* cu_seqlens_q; /* varlen batch: sequences + 1 entries; else NULL */
  const int32_t* cu_seqlens_kv;
  int64_t sequences;
  int64_t max_seqlen_q;
  int64_t max_seqlen_kv;
  /* Padded batch and changes to the scores, as in octavo_arguments. */
  const int32_t* seqlens_q;
  const int32_t* seqlens_kv;
  const int32_t* leftpad_q;
  const int32_t* leftpad_kv;
  octavo_tensor bias;
  octavo_tensor mask;
  const float* alibi_slopes;
  int64_t alibi_batch_stride;
  const float* sinks;
  octavo_tensor dbias;          /* written, of the shape of bias; data NULL: not computed */
  float* dsinks;                /* written, one for each query head; NULL: not computed */
  octavo_block_mask block_mask; /* as in octavo_arguments */
} octavo_backward_arguments;

typedef struct octavo_quantize_options {
  size_t size;
  int32_t granularity;
  int64_t block_rows;
  int32_t scale_rule;
  int32_t smooth;
  int32_t hadamard;
  int32_t scales_given;
  int32_t layout;      /* octavo_v_layout, of the quantized tensor */
  float max_quantized; /* quantized value of the largest magnitude; 0: the format's largest */
} octavo_quantize_options;

/* Memory of a device; octavo::QuantizeArguments says what each is. cu_seqlens NULL: no varlen
 * batch. */
typedef struct octavo_quantize_arguments {
  size_t size;
  octavo_tensor x;
  octavo_tensor quantized;
  float* scales;
  float* mean;
  const int32_t* cu_seqlens;
  int64_t sequences;
  int64_t max_seqlen;
} octavo_quantize_arguments;

typedef enum octavo_operand {
  OCTAVO_OPERAND_Q = 0,
  OCTAVO_OPERAND_K = 1,
  OCTAVO_OPERAND_V = 2
} octavo_operand;

typedef struct octavo_range_stats {
  double amax;
  double clipped_fraction;
  double flushed_fraction;
  double sqnr_db;
  int64_t values;
  int64_t nan_values;
  int64_t inf_values;
} octavo_range_stats;

/* The memory order of a KV cache: (pages, heads, page_size, head_dim), or (pages, page_size, heads,
 * head_dim). */
typedef enum octavo_page_layout { OCTAVO_PAGES_BHSD = 0, OCTAVO_PAGES_BSHD = 1 } octavo_page_layout;

typedef struct octavo_kv_cache_options {
  size_t size;
  int64_t pages;
  int64_t page_size; /* a multiple of 16 from 16 to 256 */
  int64_t heads;     /* of K and V */
  int64_t head_dim;
  int32_t dtype;              /* octavo_dtype; 8-bit types have a scale per row of each head */
  int32_t layout;             /* octavo_page_layout */
  int64_t max_batch;          /* sequences that can be selected together */
  int64_t pages_per_sequence; /* the most that a sequence can have; 0: all pages */
  int64_t group;              /* of int4: channels that share a scale, 32 or 64 */
} octavo_kv_cache_options;

/* A rotary position embedding of K: `pairs` floats for each position; cos NULL: none. */
typedef struct octavo_rotary {
  size_t size;
  const float* cos;
  const float* sin;
  int64_t positions;
  int64_t pairs;       /* at most head_dim / 2 */
  int32_t interleaved; /* pair i is channels 2i and 2i + 1, instead of i and pairs + i */
} octavo_rotary;

typedef struct octavo_kv_cache octavo_kv_cache;
typedef struct octavo_plan octavo_plan;
typedef struct octavo_backward_plan octavo_backward_plan;
typedef struct octavo_owned_block_mask octavo_owned_block_mask;

/* Zeroes the struct and sets its size and defaults. `size` is the struct's size in the caller's
 * header: a newer library does not write beyond it. */
OCTAVO_C_API void octavo_arguments_init_sized(octavo_arguments* arguments, size_t size);
OCTAVO_C_API void octavo_backward_arguments_init_sized(octavo_backward_arguments* arguments,
                                                       size_t size);
OCTAVO_C_API void octavo_options_init_sized(octavo_options* options, size_t size);
OCTAVO_C_API void octavo_kv_cache_options_init_sized(octavo_kv_cache_options* options, size_t size);
OCTAVO_C_API void octavo_rotary_init_sized(octavo_rotary* rotary, size_t size);
OCTAVO_C_API void octavo_quantize_options_init_sized(octavo_quantize_options* options, size_t size);
OCTAVO_C_API void octavo_quantize_arguments_init_sized(octavo_quantize_arguments* arguments,
                                                       size_t size);
static inline void octavo_arguments_init(octavo_arguments* arguments) {
  octavo_arguments_init_sized(arguments, sizeof(*arguments));
}
static inline void octavo_backward_arguments_init(octavo_backward_arguments* arguments) {
  octavo_backward_arguments_init_sized(arguments, sizeof(*arguments));
}
static inline void octavo_options_init(octavo_options* options) {
  octavo_options_init_sized(options, sizeof(*options));
}
static inline void octavo_kv_cache_options_init(octavo_kv_cache_options* options) {
  octavo_kv_cache_options_init_sized(options, sizeof(*options));
}
static inline void octavo_rotary_init(octavo_rotary* rotary) {
  octavo_rotary_init_sized(rotary, sizeof(*rotary));
}
static inline void octavo_quantize_options_init(octavo_quantize_options* options) {
  octavo_quantize_options_init_sized(options, sizeof(*options));
}
static inline void octavo_quantize_arguments_init(octavo_quantize_arguments* arguments) {
  octavo_quantize_arguments_init_sized(arguments, sizeof(*arguments));
}
/* Contiguous in memory order (batch, heads, seqlen, head_dim) or (batch, seqlen, heads, head_dim).
 */
OCTAVO_C_API octavo_tensor octavo_tensor_bhsd(void* data, octavo_dtype dtype, int64_t b, int64_t h,
                                              int64_t s, int64_t d);
OCTAVO_C_API octavo_tensor octavo_tensor_bshd(void* data, octavo_dtype dtype, int64_t b, int64_t h,
                                              int64_t s, int64_t d);

/* device: "cpu", "cuda:0", "auto"; NULL means "cpu". options may be NULL. */
OCTAVO_C_API octavo_status octavo_attention(const octavo_arguments* arguments,
                                            const octavo_options* options, const char* device,
                                            void* stream);

OCTAVO_C_API octavo_status octavo_plan_create(const octavo_arguments* arguments,
                                              const octavo_options* options, const char* device,
                                              octavo_plan** plan);
OCTAVO_C_API void octavo_plan_destroy(octavo_plan* plan); /* NULL is allowed */
OCTAVO_C_API octavo_status octavo_plan_workspace_bytes(const octavo_plan* plan,
                                                       const octavo_arguments* arguments,
                                                       size_t* bytes);
OCTAVO_C_API octavo_status octavo_plan_run(const octavo_plan* plan,
                                           const octavo_arguments* arguments, void* workspace,
                                           size_t workspace_bytes, void* stream);

/* Writes at most `capacity` bytes including the terminator; `needed` (may be NULL) receives the
 * size of the whole text with its terminator. */
OCTAVO_C_API octavo_status octavo_explain(const octavo_arguments* arguments,
                                          const octavo_options* options, const char* device,
                                          char* text, size_t capacity, size_t* needed);

/* The backward pass, with the same conventions. */
OCTAVO_C_API octavo_status octavo_attention_backward(const octavo_backward_arguments* arguments,
                                                     const octavo_options* options,
                                                     const char* device, void* stream);
OCTAVO_C_API octavo_status octavo_backward_plan_create(const octavo_backward_arguments* arguments,
                                                       const octavo_options* options,
                                                       const char* device,
                                                       octavo_backward_plan** plan);
OCTAVO_C_API void octavo_backward_plan_destroy(octavo_backward_plan* plan); /* NULL is allowed */
OCTAVO_C_API octavo_status octavo_backward_plan_workspace_bytes(
    const octavo_backward_plan* plan, const octavo_backward_arguments* arguments, size_t* bytes);
OCTAVO_C_API octavo_status octavo_backward_plan_run(const octavo_backward_plan* plan,
                                                    const octavo_backward_arguments* arguments,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);
OCTAVO_C_API octavo_status octavo_explain_backward(const octavo_backward_arguments* arguments,
                                                   const octavo_options* options,
                                                   const char* device, char* text, size_t capacity,
                                                   size_t* needed);

/* The block mask of ranges of keys, with its arrays in host memory; octavo.hpp describes it. The
 * view is valid until the mask is destroyed. */
OCTAVO_C_API octavo_status octavo_block_mask_from_ranges(const octavo_key_ranges* ranges,
                                                         int64_t block_size,
                                                         octavo_owned_block_mask** mask);
OCTAVO_C_API octavo_status octavo_owned_block_mask_view(const octavo_owned_block_mask* mask,
                                                        octavo_block_mask* view);
OCTAVO_C_API void octavo_owned_block_mask_destroy(
    octavo_owned_block_mask* mask); /* NULL is allowed */

/* Merges attention over parts of the keys into attention over all of them; lse may be NULL. */
OCTAVO_C_API octavo_status octavo_merge_states(const octavo_tensor* outs, const octavo_tensor* lses,
                                               size_t parts, const octavo_tensor* out,
                                               const octavo_tensor* lse, const char* device,
                                               void* stream);

/* A paged KV cache; kv_cache.hpp describes the functions. A cache may be used by one thread at a
 * time, and a failed call leaves it as it was. Streams are CUDA's, and may be NULL. */
OCTAVO_C_API octavo_status octavo_kv_cache_create(const octavo_kv_cache_options* options,
                                                  const char* device, octavo_kv_cache** cache);
OCTAVO_C_API void octavo_kv_cache_destroy(octavo_kv_cache* cache); /* NULL is allowed */
OCTAVO_C_API octavo_status octavo_kv_cache_add_sequence(octavo_kv_cache* cache, int64_t* sequence);
OCTAVO_C_API octavo_status octavo_kv_cache_fork(octavo_kv_cache* cache, int64_t sequence,
                                                int64_t* forked);
OCTAVO_C_API octavo_status octavo_kv_cache_free_sequence(octavo_kv_cache* cache, int64_t sequence,
                                                         void* stream);
OCTAVO_C_API octavo_status octavo_kv_cache_length(const octavo_kv_cache* cache, int64_t sequence,
                                                  int64_t* length);
OCTAVO_C_API octavo_status octavo_kv_cache_free_pages(const octavo_kv_cache* cache, int64_t* pages);
OCTAVO_C_API octavo_status octavo_kv_cache_select(octavo_kv_cache* cache, const int64_t* sequences,
                                                  size_t count, void* stream);
OCTAVO_C_API octavo_status octavo_kv_cache_reserve(octavo_kv_cache* cache, int64_t tokens,
                                                   void* stream);
OCTAVO_C_API octavo_status octavo_kv_cache_advance(octavo_kv_cache* cache, int64_t tokens,
                                                   void* stream);
/* rotary may be NULL. */
OCTAVO_C_API octavo_status octavo_kv_cache_append(octavo_kv_cache* cache, const octavo_tensor* k,
                                                  const octavo_tensor* v,
                                                  const octavo_rotary* rotary, void* stream);
/* Sets k, v, their scales or groups, page_table and seqlens_kv for the selected sequences. */
OCTAVO_C_API octavo_status octavo_kv_cache_set_arguments(const octavo_kv_cache* cache,
                                                         octavo_arguments* arguments);
OCTAVO_C_API octavo_status octavo_kv_cache_read(const octavo_kv_cache* cache, int64_t sequence,
                                                const octavo_tensor* k, const octavo_tensor* v,
                                                void* stream);

/* Returns -1 if the shape or granularity is invalid or the count overflows. */
OCTAVO_C_API int64_t octavo_scale_count(const int64_t shape[4], octavo_granularity granularity,
                                        int64_t block_rows);
/* The bytes of one channel of a transposed V, where `keys` counts tokens in a varlen batch
 * (sequences > 0); and the offset of sequence `number` in such a channel if its first token is
 * `begin`. Both return -1 if an argument is negative or the result overflows. */
OCTAVO_C_API int64_t octavo_transposed_columns(int64_t keys, int64_t sequences);
OCTAVO_C_API int64_t octavo_transposed_begin(int64_t begin, int64_t number);
/* stats may be NULL; mean may be NULL unless smoothing. */
OCTAVO_C_API octavo_status octavo_quantize(const octavo_tensor* x,
                                           const octavo_quantize_options* options,
                                           const octavo_tensor* quantized, float* scales,
                                           float* mean, octavo_range_stats* stats);
/* octavo_quantize() on a device, in stream order: octavo::quantize() of octavo.hpp has the limits.
 */
OCTAVO_C_API octavo_status octavo_quantize_on_device(const octavo_quantize_arguments* arguments,
                                                     const octavo_quantize_options* options,
                                                     const char* device, void* stream);
/* How an 8-bit precision quantizes an operand for the fastest kernels of the device: an
 * octavo_dtype, and options. */
OCTAVO_C_API octavo_status octavo_operand_quantization(octavo_operand operand, int32_t precision,
                                                       int64_t head_dim, const char* device,
                                                       int32_t* format,
                                                       octavo_quantize_options* options);
OCTAVO_C_API octavo_status octavo_dequantize(const octavo_tensor* quantized,
                                             const octavo_scales* scales, const octavo_tensor* out);

/* The error message of this thread's last failed call; "" if none failed. */
OCTAVO_C_API const char* octavo_last_error(void);
OCTAVO_C_API const char* octavo_version(void);

#ifdef __cplusplus
}
#endif

#endif /* OCTAVO_OCTAVO_H */
