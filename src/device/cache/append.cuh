// SPDX-License-Identifier: Apache-2.0
// Appends new rows of K and V to the pages of a KV cache: K is rotated if the call has a rotary
// embedding, and both are rounded to the type of the cache, quantized with a scale for each row, or
// quantized to int4 with a scale and a zero for each group of channels.
//
// Row `position` of a sequence is row position % page_size of page table[sequence][position /
// page_size]. lanes(config) neighbouring lanes share a row, eight columns each, first of K and then
// of V.
//
// The lengths are read and changed on the device, so that a captured graph can be replayed:
//
//   every CTA      reads the lengths of its sequences, barrier, then one thread counts the arrival
//   the last CTA   waits until all others have arrived, then adds `tokens` to the lengths, and
//                  resets the count of arrivals for the next launch
//
// CTAs with lower indices start first, so the last one may wait for them. A sequence whose pages
// cannot hold the new rows keeps its rows and its length.
#pragma once

#include "config/append.h"
#include "config/quantize.h"
#include "device/cache/int4.cuh"
#include "device/cache/params.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/quantize/encode.cuh"
#include "device/quantize/rows.cuh"

namespace octavo::append {

template <AppendConfig kConfig>
struct ConfigOf {
  static constexpr AppendConfig value = kConfig;
};

// The quantizer's view of a row. Nothing writes the new rows while the grid runs, so loads need not
// be coherent, whatever the chip.
OCTAVO_HD constexpr QuantizeConfig row_config(const AppendConfig& c) {
  QuantizeConfig row;
  row.from = c.from;
  row.to = c.to;
  row.columns = c.columns;
  row.load_bytes = c.load_bytes;
  return row;
}

template <Element kFrom>
OCTAVO_DEVICE float load_element(const u8* row, i32 column) {
  const u8* const at = row + column * element_bytes(kFrom);
  if constexpr (kFrom == Element::f32)
    return ptx::load_global_f32(reinterpret_cast<const float*>(at));
  const u32 bits = ptx::load_global_b16(at);
  if constexpr (kFrom == Element::bf16) return ptx::float_of_bits(bits << 16);
  float low, high;
  ptx::f32_from_f16x2(low, high, bits);
  return low;
}

template <class Config>
struct AppendKernel {
  static constexpr AppendConfig C = Config::value;
  static constexpr QuantizeConfig kRow = row_config(C);
  static constexpr bool kInt4 = C.to == Element::int4;
  static constexpr bool kQuantizes = element_bytes(C.to) == 1 && !kInt4;
  static_assert(C.columns == 64 || C.columns == 128 || C.columns == 256, "columns are 64 to 256");
  static_assert(kVector == quantizer::kVector, "rows are divided as in the quantizers");

  // The new row of one token and head. All lanes that share the row hold the same values.
  struct Row {
    i32 sequence = 0, head = 0, token = 0;
    i32 position = 0;            // in the sequence
    i32 page = 0, page_row = 0;  // where it is written
    bool exists = false;
  };

  // Whether the new rows of a sequence fit into its pages, and the rotary tables reach their
  // positions.
  static OCTAVO_DEVICE bool fits(const Params& p, i32 sequence, i32 length) {
    const i32 most = min_of(ptx::load_global_i32(p.capacities + sequence), p.positions);
    return p.tokens <= most - length;
  }

  static OCTAVO_DEVICE Row find_row(const Params& p, i32 index) {
    Row row;
    if (ptx::mask_term(index >= p.rows, false)) return row;
    const i32 head = p.by_tokens.quotient(index);
    row.token = index - head * p.tokens;
    row.sequence = p.by_heads.quotient(head);
    row.head = head - row.sequence * p.heads;
    const i32 length = ptx::load_coherent_i32(p.lengths + row.sequence);
    row.exists = ptx::mask_term(fits(p, row.sequence, length), true);
    if (!row.exists) return row;
    row.position = length + row.token;
    const i32 index_of_page = p.by_page_size.quotient(row.position);
    row.page_row = row.position - index_of_page * p.page_size;
    row.page = ptx::load_global_i32(p.table + row.sequence * p.table_stride + index_of_page);
    return row;
  }

  static OCTAVO_DEVICE const u8* source(const Side& side, const Row& row) {
    return static_cast<const u8*>(side.from) +
           (row.sequence * side.from_strides.batch + row.head * side.from_strides.head +
            row.token * side.from_strides.row) *
               element_bytes(C.from);
  }

  // Loads this lane's columns of a row; zeros if the row does not exist.
  static OCTAVO_DEVICE void load(const Params& p, const Side& side, const Row& row, i32 column,
                                 float (&x)[kVector]) {
    u32 words[kVector * element_bytes(C.from) / 4];
    quantizer::load_words<kRow>(source(side, row), column, row.exists ? p.head_dim : 0, words);
    quantizer::widen<C.from>(words, x);
  }

  // (x, y) -> (x cos - y sin, y cos + x sin) for each pair of channels, with the roundings of the
  // CPU.
  static OCTAVO_DEVICE void rotate(const Params& p, const Row& row, i32 column,
                                   float (&x)[kVector]) {
    const u8* const from = source(p.k, row);
    const i64 angle = static_cast<i64>(row.position) * p.pairs;
    float rotated[kVector];
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const i32 channel = column + i;
      rotated[i] = x[i];
      if (channel >= 2 * p.pairs) continue;
      const bool is_second = p.interleaved ? i % 2 != 0 : channel >= p.pairs;
      const i32 pair = p.interleaved ? channel / 2 : is_second ? channel - p.pairs : channel;
      const float other = p.interleaved
                              ? x[i ^ 1]
                              : load_element<C.from>(from, is_second ? pair : channel + p.pairs);
      const float own = ptx::multiply_rn(x[i], ptx::load_global_f32(p.cos + angle + pair));
      const float turned = ptx::multiply_rn(other, ptx::load_global_f32(p.sin + angle + pair));
      rotated[i] = is_second ? ptx::add_rn(own, turned) : ptx::subtract_rn(own, turned);
    }
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i) x[i] = rotated[i];
  }

  // All lanes of a warp call it together.
  static OCTAVO_DEVICE void store(const Params& p, const Side& side, const Row& row, i32 column,
                                  const float (&x)[kVector]) {
    float inverse = 1;
    if constexpr (kQuantizes) {
      const float amax = quantizer::lanes_max(quantizer::largest_magnitude(x), 1, lanes(C));
      const float scale = quantizer::scale_from_amax<C.to>(amax, p.max_quantized);
      inverse = quantizer::inverse_step<C.to>(scale);
      if (row.exists && column == 0)
        ptx::store_global_f32(side.scales +
                                  (static_cast<i64>(row.page) * p.heads + row.head) * p.page_size +
                                  row.page_row,
                              scale);
    }
    if (!row.exists || ptx::mask_term(column >= p.head_dim, false)) return;
    u8* const to = static_cast<u8*>(side.to) +
                   (row.page * side.to_strides.batch + row.head * side.to_strides.head +
                    row.page_row * side.to_strides.row + column) *
                       element_bytes(C.to);
    store_vector(to, x, inverse);
  }

  // All lanes of a warp call it together.
  static OCTAVO_DEVICE void store_int4(const Params& p, const Side& side, u16* groups,
                                       const Row& row, i32 column, const float (&x)[kVector]) {
    const Int4Group group(x, C.group / kVector);
    if (!row.exists || ptx::mask_term(column >= p.head_dim, false)) return;
    const i32 count = p.head_dim / C.group;
    if (column % C.group == 0) {
      const i64 head = static_cast<i64>(row.page) * p.heads + row.head;
      u16* const to = groups + (head * 2 * count + column / C.group) * p.page_size + row.page_row;
      ptx::store_global_b16(to, static_cast<u16>(group.bits));
      ptx::store_global_b16(to + count * p.page_size, static_cast<u16>(group.bits >> 16));
    }
    u8* const to = static_cast<u8*>(side.to) + row.page * side.to_strides.batch +
                   row.head * side.to_strides.head + row.page_row * side.to_strides.row +
                   column / 2;
    ptx::store_global_b32(to, group.encode(x));
  }

  static OCTAVO_DEVICE void store_vector(u8* to, const float (&x)[kVector], float inverse) {
    if constexpr (kQuantizes) {
      u32 words[2];
      OCTAVO_UNROLL
      for (int i = 0; i < 2; ++i)
        words[i] = quantizer::encode_pair<C.to>(x[4 * i], x[4 * i + 1], inverse, inverse) |
                   quantizer::encode_pair<C.to>(x[4 * i + 2], x[4 * i + 3], inverse, inverse) << 16;
      ptx::store_global_b64(to, words[0], words[1]);
    } else {
      u32 words[4];
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i)
        words[i] = C.to == Element::f16 ? ptx::f16x2_from_f32(x[2 * i], x[2 * i + 1])
                                        : ptx::bf16x2_from_f32(x[2 * i], x[2 * i + 1]);
      ptx::store_global_b128(to, words);
    }
  }

  // Adds the new tokens to the lengths. The last CTA calls it; it waits until all other CTAs have
  // read the lengths.
  static OCTAVO_DEVICE void grow(const Params& p, u32 thread, u32 others) {
    if (thread == 0)
      while (ptx::ld_acquire(p.arrivals) != others) {
      }
    ptx::cta_sync();
    for (i32 sequence = static_cast<i32>(thread); sequence < p.batch; sequence += kThreads) {
      const i32 length = ptx::load_coherent_i32(p.lengths + sequence);
      if (fits(p, sequence, length))
        ptx::store_global_b32(p.lengths + sequence, static_cast<u32>(length + p.tokens));
    }
    if (thread != 0) return;
    ptx::spare("the next launch follows this one");
    ptx::red_release_add(p.arrivals, 0u - others);
  }

  static OCTAVO_DEVICE void entry(const Params& p) {
    const u32 thread = ptx::thread_index();
    const u32 others = static_cast<u32>(ptx::grid_size_x()) - 1;
    const i32 block = ptx::block_index_x();
    const bool is_last = static_cast<u32>(block) == others;
    const i32 column = static_cast<i32>(thread) % lanes(C) * kVector;
    const Row row = find_row(p, block * rows_of_cta(C) + static_cast<i32>(thread) / lanes(C));
    ptx::cta_sync();  // every thread has read its length
    if (!is_last && thread == 0) ptx::red_release_add(p.arrivals, 1);

    float k[kVector], v[kVector];
    load(p, p.k, row, column, k);
    load(p, p.v, row, column, v);
    if (p.cos != nullptr && row.exists) rotate(p, row, column, k);
    if constexpr (kInt4) {
      store_int4(p, p.k, p.k_groups, row, column, k);
      store_int4(p, p.v, p.v_groups, row, column, v);
    } else {
      store(p, p.k, row, column, k);
      store(p, p.v, row, column, v);
    }
    if (is_last) grow(p, thread, others);
  }
};

template <class Config>
OCTAVO_KERNEL(kThreads, 1)
append_rows(const OCTAVO_GRID_CONSTANT Params p) {
  AppendKernel<Config>::entry(p);
}

}  // namespace octavo::append
