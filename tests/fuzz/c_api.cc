// SPDX-License-Identifier: Apache-2.0
// Fuzz target: attention through the C interface. The bytes choose a mostly valid call, then make
// up to two of its fields invalid. A failed call leaves the outputs unchanged and sets an error
// sentence; a successful one writes every output element and nothing else, and plan, workspace and
// run write the same bytes.
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "c_tensor.h"
#include "octavo/octavo.hpp"

// Allocating a workspace that is too large must return null instead of a sanitizer report.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace octavo::fuzz {
namespace {

// The struct with space behind it: its size field may claim more than this version knows.
template <class Struct>
struct Sized {
  Struct value;
  unsigned char tail[64] = {};
};

// Memory in units whose address is a multiple of 16.
struct alignas(16) Chunk {
  std::uint8_t bytes[16];
};

struct Call {
  Sized<octavo_arguments> arguments;
  Sized<octavo_options> options;
  const char* device = "cpu";
  std::array<std::unique_ptr<float[]>, 3> scales;
  std::unique_ptr<std::int32_t[]> cu_q, cu_kv, page_table, lengths;
  std::array<std::unique_ptr<std::int32_t[]>, 4> padding;
  std::unique_ptr<float[]> slopes, sinks;
  std::array<std::unique_ptr<Chunk[]>, 2> groups;  // of int4 K and V
  std::unique_ptr<Chunk[]> block_bits;
  std::array<std::unique_ptr<std::int32_t[]>, 6> lists;  // of the block mask, and the draft tree
  Operand q, k, v, out, lse, bias, mask;
  bool wants_lse = false;
  bool spoiled_size = false;
};

void choose_tensors(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  const bool varlen = in.one_in(4);
  const std::int64_t batch = varlen ? 1 : in.between(0, 2);
  const std::int64_t ratio = in.between(1, 3), heads_kv = in.between(1, 2);
  const std::int64_t heads_q = in.one_in(16) ? in.between(0, 5) : ratio * heads_kv;
  const std::int64_t seqlen_q = in.between(0, 20), seqlen_kv = in.between(0, 36);
  const std::int64_t dim = in.one_in(4) ? 8 * in.between(1, 9) : in.between(1, 20);
  const std::int32_t dtype = in.below(7);
  const bool mixed = in.one_in(4);
  a.q = make_view(in, dtype, batch, heads_q, seqlen_q, dim);
  a.k = make_view(in, mixed ? in.below(7) : dtype, batch, heads_kv, seqlen_kv, dim);
  a.v = make_view(in, mixed ? in.below(7) : dtype, batch, heads_kv, seqlen_kv, dim);
  a.out = make_view(in, in.below(3), batch, heads_q, seqlen_q, dim);
  call.wants_lse = in.one_in(2);
  if (call.wants_lse) a.lse = make_view(in, OCTAVO_F32, batch, heads_q, seqlen_q, 1);
  if (varlen) {
    a.sequences = in.between(0, 4);
    a.max_seqlen_q = in.one_in(3) ? in.between(0, 20) : seqlen_q;
    a.max_seqlen_kv = in.one_in(3) ? in.between(0, 36) : seqlen_kv;
    call.cu_q = std::make_unique<std::int32_t[]>(1);  // sized when the fields are final
  }
  for (octavo_scales* s : {&a.q_scales, &a.k_scales, &a.v_scales}) {
    s->granularity = in.below(5);
    s->block_rows = in.between(1, 20);
  }
  if (in.one_in(3)) {
    a.has_scale = 1;
    a.scale = in.pick({0.125f, 0.0f, -1.0f, 100.0f, NAN, INFINITY, 1e-30f});
  }
}

// V and the output may have other columns than Q and K.
void choose_columns_of_v(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  const std::int64_t columns = in.between(1, 24);
  for (octavo_tensor* t : {&a.v, &a.out})
    *t = make_view(in, t->dtype, t->shape[0], t->shape[1], t->shape[2], columns);
}

void choose_options(Reader& in, Call& call) {
  octavo_options& o = call.options.value;
  o.causal = in.below(3);
  if (in.one_in(3)) o.window_left = in.between(0, 40);
  if (in.one_in(3)) o.window_right = in.between(0, 40);
  o.precision = in.below(9);
  if (in.one_in(3)) o.granularity_qk = in.below(5);
  if (in.one_in(3)) o.granularity_v = in.below(5);
  o.block_rows = in.between(1, 40);
  o.scale_rule = in.one_in(8);
  o.smooth_k = in.one_in(4);
  o.hadamard = in.one_in(4);
  o.batch_invariant = in.one_in(2);
  o.overlap_launch = in.one_in(2);
  call.device = in.one_in(32) ? in.pick({"cuda:7", "", "gpu", "emulator", "cpu:1", "cuda:-1"})
                              : in.pick({"cpu", static_cast<const char*>(nullptr)});
}

// Changes one field to a value that a confused caller might pass.
void spoil(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  octavo_options& o = call.options.value;
  octavo_tensor* const tensors[] = {&a.q, &a.k, &a.v, &a.out, &a.lse};
  octavo_scales* const scales[] = {&a.q_scales, &a.k_scales, &a.v_scales};
  std::int64_t* const numbers[] = {&o.window_left,  &o.window_right,  &o.block_rows,
                                   &a.max_seqlen_q, &a.max_seqlen_kv, &a.sequences};
  std::int32_t* const codes[] = {&o.causal,
                                 &o.precision,
                                 &o.granularity_qk,
                                 &o.granularity_v,
                                 &o.scale_rule,
                                 &a.q.dtype,
                                 &a.k.dtype,
                                 &a.v.dtype,
                                 &a.out.dtype,
                                 &a.lse.dtype,
                                 &scales[0]->granularity,
                                 &scales[1]->granularity,
                                 &scales[2]->granularity};
  switch (in.below(7)) {
    case 0:
      in.pick(tensors)->shape[in.below(4)] = in.pick(kInsane);
      break;
    case 1:
      in.pick(tensors)->stride[in.below(4)] = in.pick(kInsane);
      break;
    case 2:
      *in.pick(numbers) = in.pick(kInsane);
      break;
    case 3:
      *in.pick(codes) = in.pick({-1, 7, 9, 200, 255, 256, INT32_MAX, INT32_MIN});
      break;
    case 4:
      in.pick(scales)->stride[in.below(3)] = in.pick(kInsane);
      break;
    case 5:
      in.pick(scales)->block_rows = in.pick(kInsane);
      break;
    default: {
      constexpr std::size_t kSize = sizeof(octavo_arguments);
      a.size = in.pick<std::size_t>({0, 7, 8, 100, kSize - 8, kSize + 32, 1u << 20});
      call.arguments.tail[8] = in.one_in(2);
      call.spoiled_size = true;
    }
  }
}

// Allocates the scales of one operand, as many as its fields require. False: too many for a test.
bool allocate_scales(Reader& in, const octavo_arguments& a, const octavo_tensor& t, bool varlen,
                     std::int64_t max_len, octavo_scales& s, std::unique_ptr<float[]>& memory) {
  __extension__ using Wide = __int128;
  const bool by_sequence = varlen && s.granularity != OCTAVO_PER_ROW;
  const Wide rows = by_sequence ? max_len : t.shape[2];
  const Wide block = s.block_rows < 1 ? 1 : s.block_rows;
  const Wide batch = by_sequence ? a.sequences : t.shape[0], heads = t.shape[1];
  const Wide inner = s.granularity == OCTAVO_PER_BLOCK     ? (rows + block - 1) / block
                     : s.granularity == OCTAVO_PER_ROW     ? rows
                     : s.granularity == OCTAVO_PER_CHANNEL ? t.shape[3]
                                                           : 1;
  // Sizes beyond any memory are left to the library: their product could overflow even here.
  constexpr Wide kMost = Wide{1} << 58;
  const double rough =
      static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(inner);
  Wide count = s.granularity == OCTAVO_PER_TENSOR                 ? 1
               : std::abs(rough) > static_cast<double>(kMost) * 2 ? kMost + 1
                                                                  : batch * heads * inner;
  if ((s.stride[0] != 0 || s.stride[1] != 0 || s.stride[2] != 0) && count > 0 && count <= kMost &&
      s.granularity != OCTAVO_PER_TENSOR)
    count = (batch - 1) * s.stride[0] + (heads - 1) * s.stride[1] + (inner - 1) * s.stride[2] + 1;
  const bool refused = count < 0 || count > kMost;
  if (!refused && count > (1 << 18)) return false;
  const auto n = static_cast<std::size_t>(refused ? 0 : count);
  memory = std::make_unique<float[]>(n);
  for (std::size_t i = 0; i < n; ++i) memory[i] = 0.01f * static_cast<float>(1 + i % 7);
  if (n > 0 && in.one_in(16)) memory[n - 1] = in.pick({NAN, INFINITY, 0.0f, -1.0f});
  s.data = memory.get();
  return true;
}

// Cumulative lengths: mostly increasing, occasionally arbitrary.
std::unique_ptr<std::int32_t[]> make_lengths(Reader& in, std::int64_t sequences,
                                             std::int64_t tokens) {
  auto cu = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(sequences) + 1);
  const bool wild = in.one_in(4);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i <= sequences; ++i) {
    cu[static_cast<std::size_t>(i)] =
        wild ? static_cast<std::int32_t>(in.word()) >> in.below(32) : static_cast<std::int32_t>(at);
    at = i + 1 >= sequences ? tokens : std::min(tokens, at + in.between(0, 20));
  }
  return cu;
}

// A tensor that broadcasts to the scores. False: too large for a test.
bool add_score_tensor(Reader& in, const octavo_arguments& a, std::int32_t dtype,
                      octavo_tensor& view, Operand& operand) {
  std::int64_t n[4] = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.shape[2]};
  for (std::int64_t& size : n) {
    if (size < 0 || size > 4096) return true;  // refused already
    if (in.one_in(3)) size = 1;
  }
  view = make_view(in, dtype, n[0], n[1], n[2], n[3]);
  if (in.one_in(16)) view.shape[in.below(4)] = in.pick(kInsane);
  if (in.one_in(16)) view.stride[in.below(4)] = in.pick(kInsane);
  if (operand.allocate(view) == Operand::Span::too_large) return false;
  operand.fill(in, dtype);
  return true;
}

std::unique_ptr<float[]> make_floats(Reader& in, std::int64_t count) {
  auto made = std::make_unique<float[]>(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    made[static_cast<std::size_t>(i)] =
        in.pick({0.5f, 0.0f, -1.0f, 3.0f, 30.0f, NAN, INFINITY, -INFINITY});
  return made;
}

// Makes k and v a paged cache, with the pages of a tensor that has at least sixteen rows. Entries
// and lengths are mostly valid, occasionally arbitrary.
void add_pages(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  const auto within = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 0, 4096); };
  const std::int64_t batch = within(a.q.shape[0]), pages = within(a.k.shape[0]);
  if (a.k.shape[2] >= 16 && a.v.shape[2] >= 16) a.k.shape[2] = a.v.shape[2] = 16;
  const std::int64_t columns = in.between(0, 3), stride = columns + in.between(0, 1);
  const auto wild = [&in] { return in.pick({-1, 7, INT32_MIN, INT32_MAX}); };
  call.page_table = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(batch * stride));
  for (std::int64_t i = 0; i < batch * stride; ++i)
    call.page_table[static_cast<std::size_t>(i)] =
        in.one_in(16) || pages == 0 ? wild() : static_cast<std::int32_t>(in.between(0, pages - 1));
  call.lengths = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(batch));
  for (std::int64_t b = 0; b < batch; ++b)
    call.lengths[static_cast<std::size_t>(b)] =
        in.one_in(16) ? wild() : static_cast<std::int32_t>(in.between(0, 16 * columns));
  a.page_table = call.page_table.get();
  a.page_table_stride = in.one_in(16) ? in.pick({std::int64_t{-1}, INT64_MAX}) : stride;
  a.pages_per_sequence = in.one_in(16) ? in.pick({std::int64_t{-1}, INT64_MAX}) : columns;
  if (!in.one_in(16)) a.seqlens_kv = call.lengths.get();
  if (!in.one_in(4)) a.leftpad_kv = nullptr;
  if (!in.one_in(4)) a.bias.data = a.mask.data = nullptr;
  if (!in.one_in(4)) call.options.value.precision = OCTAVO_NATIVE;
  for (octavo_scales* s : {&a.k_scales, &a.v_scales})
    if (s->granularity == OCTAVO_PER_BLOCK && !in.one_in(4)) s->block_rows = 16;
}

std::unique_ptr<Chunk[]> make_chunks(Reader& in, std::int64_t bytes) {
  const std::int64_t count = (bytes + 15) / 16;
  auto made = std::make_unique<Chunk[]>(static_cast<std::size_t>(count));
  std::uint64_t state = in.word() | 1;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::uint8_t& byte : made[static_cast<std::size_t>(i)].bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::uint8_t>(state >> 56);
    }
  return made;
}

// Makes the pages of K and V int4, whose rows have half as many bytes as channels.
void add_groups(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  for (const auto& [view, groups, memory] :
       {std::tuple{&a.k, &a.k_groups, &call.groups[0]}, {&a.v, &a.v_groups, &call.groups[1]}}) {
    std::int64_t numbers = 1;
    for (const std::int64_t size : view->shape) {
      if (size < 0 || size > 4096) return;
      numbers *= size;
    }
    view->dtype = OCTAVO_INT4;
    view->shape[3] /= 2;
    groups->channels = in.one_in(8) ? in.pick({std::int64_t{0}, std::int64_t{48}, INT64_MAX})
                                    : 32 * in.between(1, 2);
    // A scale and a zero for each 32 channels at most.
    *memory = make_chunks(in, 4 * (numbers / 32 + numbers % 32));
    groups->data = in.one_in(16) ? nullptr : memory->get();
  }
}

// Lists of one or two blocks, mostly valid, occasionally arbitrary.
void add_block_mask(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  octavo_block_mask& m = a.block_mask;
  const auto within = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 0, 64); };
  m.block_size = in.one_in(8) ? in.pick(kInsane) : in.pick<std::int64_t>({64, 128});
  m.batch = in.one_in(2) ? 1 : within(a.q.shape[0]);
  m.heads = in.one_in(2) ? 1 : within(a.q.shape[1]);
  m.q_blocks = in.one_in(8) ? in.between(0, 2) : a.q.shape[2] > 0 ? 1 : 0;
  m.kv_capacity = in.one_in(8) ? in.between(0, 2) : a.k.shape[2] > 0 ? 1 : 0;
  m.full_kv_capacity = in.one_in(8) ? in.between(0, 2) : m.kv_capacity;
  m.bit_blocks = in.one_in(16) ? in.pick({std::int64_t{-1}, INT64_MAX}) : 1;
  const std::int64_t rows = m.batch * m.heads * m.q_blocks;
  const auto numbers = [&](std::size_t which, std::int64_t count) {
    call.lists[which] = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      call.lists[which][static_cast<std::size_t>(i)] =
          in.one_in(16) ? in.pick({-1, 2, INT32_MIN, INT32_MAX}) : in.below(2);
    return in.one_in(16) ? nullptr : call.lists[which].get();
  };
  if (in.one_in(2)) {
    m.kv_num_blocks = numbers(0, rows);
    m.kv_indices = numbers(1, rows * m.kv_capacity);
  }
  if (in.one_in(2)) {
    m.full_kv_num_blocks = numbers(2, rows);
    m.full_kv_indices = numbers(3, rows * m.full_kv_capacity);
  }
  if (in.one_in(2) && m.block_size > 0 && m.block_size <= 128) {
    m.bit_indices = numbers(4, rows * m.kv_capacity);
    call.block_bits = make_chunks(in, m.block_size * m.block_size / 8);
    m.bits = reinterpret_cast<const std::uint32_t*>(call.block_bits.get());
  }
}

void add_draft_tree(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  const auto within = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 0, 4096); };
  const std::int64_t words = within(a.q.shape[0]) * within(a.q.shape[2]);
  call.lists[5] = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(words));
  for (std::int64_t i = 0; i < words; ++i)
    call.lists[5][static_cast<std::size_t>(i)] = static_cast<std::int32_t>(in.word());
  a.draft_tree = call.lists[5].get();
}

// Padding, and what changes scores. False: too large for a test.
bool add_modifiers(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  if (in.one_in(3))
    call.options.value.softcap = in.pick({1.0f, 30.0f, 1e-40f, 3e38f, -1.0f, NAN, INFINITY});
  const auto dtype = [&in](std::int32_t usual) { return in.one_in(16) ? in.below(9) : usual; };
  if (in.one_in(3) && !add_score_tensor(in, a, dtype(in.below(3)), a.bias, call.bias)) return false;
  if (in.one_in(3) && !add_score_tensor(in, a, dtype(OCTAVO_BOOL), a.mask, call.mask)) return false;
  const bool varlen = call.cu_q != nullptr;
  const auto within = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 0, 4096); };
  const std::int64_t heads = within(a.q.shape[1]), batch = within(a.q.shape[0]);
  if (in.one_in(3)) {
    call.slopes = make_floats(in, heads * (varlen ? within(a.sequences) : batch));
    a.alibi_slopes = call.slopes.get();
    a.alibi_batch_stride = in.one_in(8) ? in.pick({std::int64_t{-1}, INT64_MAX}) : heads;
  }
  if (in.one_in(3)) {
    call.sinks = make_floats(in, heads);
    a.sinks = call.sinks.get();
  }
  const std::int32_t** const arrays[] = {&a.seqlens_q, &a.leftpad_q, &a.seqlens_kv, &a.leftpad_kv};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!in.one_in(varlen ? 32 : 4)) continue;
    const std::int64_t rows = within(i < 2 ? a.q.shape[2] : a.k.shape[2]);
    call.padding[i] = std::make_unique<std::int32_t[]>(static_cast<std::size_t>(batch));
    for (std::int64_t b = 0; b < batch; ++b)
      call.padding[i][static_cast<std::size_t>(b)] = static_cast<std::int32_t>(
          in.one_in(16) ? in.pick({-1, INT32_MIN, INT32_MAX}) : in.between(0, rows / 2));
    *arrays[i] = call.padding[i].get();
  }
  const bool paged = !varlen && in.one_in(3);
  if (paged) add_pages(in, call);
  if (paged && in.one_in(3)) add_groups(in, call);
  if (in.one_in(4)) add_draft_tree(in, call);
  if (in.one_in(paged ? 32 : 4)) add_block_mask(in, call);
  return true;
}

// Allocates everything that the call points to. False: not a call for a test.
bool allocate(Reader& in, Call& call) {
  octavo_arguments& a = call.arguments.value;
  const bool varlen = call.cu_q != nullptr;
  struct Part {
    octavo_tensor* view;
    Operand* operand;
  };
  for (const auto& [view, operand] :
       {Part{&a.q, &call.q}, Part{&a.k, &call.k}, Part{&a.v, &call.v}, Part{&a.out, &call.out}}) {
    if (operand->allocate(*view) == Operand::Span::too_large) return false;
    operand->fill(in, view->dtype);
  }
  if (call.wants_lse && call.lse.allocate(a.lse) == Operand::Span::too_large) return false;
  if (varlen) {
    if (a.sequences > 64 && a.sequences <= INT32_MAX) return false;
    if (a.max_seqlen_q > 4096 && a.max_seqlen_q <= INT32_MAX) return false;
    if (a.max_seqlen_kv > 4096 && a.max_seqlen_kv <= INT32_MAX) return false;
    const std::int64_t sequences = a.sequences < 0 || a.sequences > 64 ? 0 : a.sequences;
    call.cu_q = make_lengths(in, sequences, a.q.shape[2]);
    call.cu_kv = make_lengths(in, sequences, a.k.shape[2]);
    a.cu_seqlens_q = call.cu_q.get();
    a.cu_seqlens_kv = call.cu_kv.get();
  }
  if (!allocate_scales(in, a, a.q, varlen, a.max_seqlen_q, a.q_scales, call.scales[0]) ||
      !allocate_scales(in, a, a.k, varlen, a.max_seqlen_kv, a.k_scales, call.scales[1]) ||
      !allocate_scales(in, a, a.v, varlen, a.max_seqlen_kv, a.v_scales, call.scales[2]))
    return false;
  // Pointers are changed last, because they did not exist before.
  if (in.one_in(12)) in.pick({&a.q, &a.k, &a.v, &a.out})->data = nullptr;
  if (in.one_in(24)) in.pick({&a.q_scales, &a.k_scales, &a.v_scales})->data = nullptr;
  if (in.one_in(24)) a.cu_seqlens_kv = nullptr;
  if (in.one_in(24)) a.out.data = a.q.data;
  return !in.one_in(3) || add_modifiers(in, call);
}

// The output rows that belong to some sequence, and whether no row belongs to two.
struct Rows {
  std::vector<bool> written;
  bool once = true;
};
Rows output_rows(const octavo_arguments& a) {
  Rows rows;
  const std::int64_t tokens = a.out.shape[2];
  rows.written.assign(static_cast<std::size_t>(tokens), a.cu_seqlens_q == nullptr);
  if (a.cu_seqlens_q == nullptr) return rows;
  for (std::int64_t i = 0; i < a.sequences; ++i) {
    const std::int64_t begin = std::min<std::int64_t>(std::max(a.cu_seqlens_q[i], 0), tokens);
    const std::int64_t end = std::min<std::int64_t>(a.cu_seqlens_q[i + 1], tokens);
    for (std::int64_t s = begin; s < std::min(end, begin + a.max_seqlen_q); ++s) {
      if (rows.written[static_cast<std::size_t>(s)]) rows.once = false;
      rows.written[static_cast<std::size_t>(s)] = true;
    }
  }
  return rows;
}

octavo_status run_by_plan(const Call& call, std::int64_t missing_bytes) {
  const octavo_arguments* a = &call.arguments.value;
  octavo_plan* plan = nullptr;
  octavo_status status = octavo_plan_create(a, &call.options.value, call.device, &plan);
  if (status != OCTAVO_OK) {
    require(plan == nullptr, "a plan that failed is not made");
    return status;
  }
  std::size_t bytes = 0;
  status = octavo_plan_workspace_bytes(plan, a, &bytes);
  void* workspace = nullptr;
  if (status == OCTAVO_OK) {
    bytes -= std::min(bytes, static_cast<std::size_t>(missing_bytes));
    if (bytes > (1u << 28) || posix_memalign(&workspace, 64, bytes) != 0)
      status = OCTAVO_OUT_OF_MEMORY;
  }
  if (status == OCTAVO_OK) status = octavo_plan_run(plan, a, workspace, bytes, nullptr);
  std::free(workspace);
  octavo_plan_destroy(plan);
  return status;
}

void check_explain(Reader& in, const Call& call) {
  const std::size_t capacity = in.byte();
  const auto text = std::make_unique<char[]>(capacity);
  std::size_t needed = 0;
  const octavo_status status = octavo_explain(&call.arguments.value, &call.options.value,
                                              call.device, text.get(), capacity, &needed);
  if (status != OCTAVO_OK) return require_sentence(octavo_last_error());
  require(needed > 1, "an explanation says something");
  if (capacity > 0)
    require(std::strlen(text.get()) == std::min(capacity, needed) - 1, "and ends where it should");
}

void check(Reader& in, Call& call) {
  constexpr std::uint8_t kFirst = 0xa5, kSecond = 0x5a;
  const octavo_arguments& a = call.arguments.value;
  const bool aliased = a.out.data == a.q.data;
  call.out.poison(kFirst);
  call.lse.poison(kFirst);
  const auto q = call.q.copy(), k = call.k.copy(), v = call.v.copy();
  const octavo_status status = octavo_attention(&a, &call.options.value, call.device, nullptr);
  const auto out = call.out.copy(), lse = call.lse.copy();
  if (status == OCTAVO_OK && aliased) require(call.q.bytes() == 0, "out over q is refused");
  require(q == call.q.copy() && k == call.k.copy() && v == call.v.copy(), "inputs stay");
  if (status != OCTAVO_OK) {
    require_sentence(octavo_last_error());
    require_untouched(out, kFirst, "a failed call leaves out as it was");
    require_untouched(lse, kFirst, "a failed call leaves lse as it was");
  }

  call.out.poison(kSecond);
  call.lse.poison(kSecond);
  const octavo_status again = run_by_plan(call, in.one_in(8) ? 1 : 0);
  if (again != OCTAVO_OK) {
    require_untouched(call.out.copy(), kSecond, "a failed run leaves out as it was");
    require_untouched(call.lse.copy(), kSecond, "a failed run leaves lse as it was");
  }
  require(status == OCTAVO_OK || again != OCTAVO_OK, "a plan accepts what the one call does");
  if (status == OCTAVO_OK && again == OCTAVO_OK && !call.spoiled_size) {
    const Rows rows = output_rows(a);
    const auto wanted = [&rows](std::int64_t s) {
      return rows.written[static_cast<std::size_t>(s)];
    };
    require_written(out, kFirst, call.out.copy(), kSecond,
                    element_map(a.out, call.out.bytes(), wanted), rows.once);
    if (call.wants_lse)
      require_written(lse, kFirst, call.lse.copy(), kSecond,
                      element_map(a.lse, call.lse.bytes(), wanted), rows.once);
  }
  check_explain(in, call);
}

}  // namespace
}  // namespace octavo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octavo::fuzz;
  // One thread: a call this small ends before a second thread has woken.
  static const bool alone = octavo::set_cpu_threads(1).ok();
  require(alone, "one thread can be had");
  Reader in({data, size});
  Call call;
  octavo_arguments_init(&call.arguments.value);
  octavo_options_init(&call.options.value);
  choose_tensors(in, call);
  choose_options(in, call);
  if (in.one_in(8)) choose_columns_of_v(in, call);
  for (int i = in.one_in(2) ? in.below(3) : 0; i > 0; --i) spoil(in, call);
  if (allocate(in, call)) check(in, call);
  return 0;
}
