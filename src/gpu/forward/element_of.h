// Converts the API's DType to the kernels' Element.
#pragma once

#include "config/element.h"
#include "octavo/octavo.hpp"

namespace octavo {

constexpr Element element_of(DType dtype) {
  static_assert(static_cast<int>(DType::f32) == static_cast<int>(Element::f32) &&
                static_cast<int>(DType::f16) == static_cast<int>(Element::f16) &&
                static_cast<int>(DType::bf16) == static_cast<int>(Element::bf16) &&
                static_cast<int>(DType::e4m3) == static_cast<int>(Element::e4m3) &&
                static_cast<int>(DType::e5m2) == static_cast<int>(Element::e5m2) &&
                static_cast<int>(DType::int8) == static_cast<int>(Element::int8) &&
                static_cast<int>(DType::sim8) == static_cast<int>(Element::sim8));
  return static_cast<Element>(static_cast<int>(dtype));
}

}  // namespace octavo
