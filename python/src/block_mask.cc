// SPDX-License-Identifier: Apache-2.0
#include "block_mask.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>

#include "errors.h"
#include "octavo/block_mask.hpp"

namespace nb = nanobind;

namespace octavo::python {
namespace {

using Ends = nb::ndarray<const std::int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// An array of NumPy that shares the memory of a mask, which `owner` keeps.
nb::object view(const std::int32_t* data, std::initializer_list<std::int64_t> dimensions,
                nb::handle owner) {
  std::array<std::size_t, 4> shape{};
  std::size_t count = 0;
  for (const std::int64_t n : dimensions) shape.at(count++) = static_cast<std::size_t>(n);
  return nb::cast(nb::ndarray<nb::numpy, const std::int32_t>(data, count, shape.data(), owner));
}

// The arrays of octavo.BlockMask, without partial blocks None for theirs.
nb::tuple from_ranges(const Ends& begin, const Ends& end, std::int64_t seqlen_kv,
                      std::int64_t block_size, std::string_view causal) {
  const KeyRanges ranges{.begin = begin.data(),
                         .end = end.data(),
                         .batch = static_cast<std::int64_t>(begin.shape(0)),
                         .heads = static_cast<std::int64_t>(begin.shape(1)),
                         .seqlen_q = static_cast<std::int64_t>(begin.shape(2)),
                         .seqlen_kv = seqlen_kv,
                         .causal = check(parse_causal(causal))};
  auto made = [&] {
    const nb::gil_scoped_release released;
    return block_mask_from_ranges(ranges, block_size);
  }();
  auto mask = std::make_unique<OwnedBlockMask>(check(std::move(made)));
  const BlockMask m = mask->view();
  const nb::capsule owner(mask.release(),
                          [](void* x) noexcept { delete static_cast<OwnedBlockMask*>(x); });
  const nb::object full_counts = view(m.full_kv_num_blocks, {m.batch, m.heads, m.q_blocks}, owner);
  const nb::object full_indices =
      view(m.full_kv_indices, {m.batch, m.heads, m.q_blocks, m.full_kv_capacity}, owner);
  if (m.bits == nullptr)
    return nb::make_tuple(nb::none(), nb::none(), full_counts, full_indices, nb::none(),
                          nb::none());
  return nb::make_tuple(view(m.kv_num_blocks, {m.batch, m.heads, m.q_blocks}, owner),
                        view(m.kv_indices, {m.batch, m.heads, m.q_blocks, m.kv_capacity}, owner),
                        full_counts, full_indices,
                        view(m.bit_indices, {m.batch, m.heads, m.q_blocks, m.kv_capacity}, owner),
                        view(reinterpret_cast<const std::int32_t*>(m.bits),
                             {m.bit_blocks, m.block_size, m.block_size / 32}, owner));
}

}  // namespace

void add_block_mask(nb::module_& m) {
  m.def("_block_mask_from_ranges", &from_ranges, nb::arg("begin"), nb::arg("end"),
        nb::arg("seqlen_kv"), nb::arg("block_size"), nb::arg("causal"));
}

}  // namespace octavo::python
