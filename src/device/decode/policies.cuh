// SPDX-License-Identifier: Apache-2.0
// Selects the numerics policy and the products of a type of KV cache.
#pragma once

#include "device/decode/int4_numerics.cuh"
#include "device/decode/int4_products.cuh"
#include "device/decode/int4_transposed.cuh"
#include "device/decode/numerics.cuh"
#include "device/decode/products.cuh"

namespace octavo::decode {

template <class G, bool k8BitKv = is_8bit_kv(G::C), bool kInt4Kv = is_int4_kv(G::C)>
struct Policies {
  using Numerics = Numerics16<G>;
  using Products = decode::Products<G>;
};
template <class G>
struct Policies<G, true, false> {
  using Numerics = Numerics8Bit<G>;
  using Products = decode::Products<G>;
};
template <class G>
struct Policies<G, false, true> {
  using Numerics = NumericsInt4<G>;
  using Products = typename G::template Select<!G::kTransposed, ProductsInt4<G>,
                                               ProductsInt4Transposed<G>>::Type;
};

template <class G>
using NumericsOf = typename Policies<G>::Numerics;
template <class G>
using ProductsOf = typename Policies<G>::Products;

}  // namespace octavo::decode
