// Standard normal values from a counter: value i of a stream depends on (seed, stream, i) alone.
//
// Philox4x32-10 gives the bits; Box-Muller in double, with a logarithm and a cosine made of
// IEEE +, *, / and sqrt only, gives the value, rounded once to float. No library function, no
// contraction: the same bits in C++, on a GPU and in Python.
#pragma once

#include <array>
#include <cstdint>

namespace octavo {

std::array<std::uint32_t, 4> philox4x32(std::uint64_t seed, std::uint64_t stream,
                                        std::uint64_t counter);
float random_normal_value(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);
// Uniform in [0, n), for choosing cases; n > 0.
std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                           std::uint64_t n);

}  // namespace octavo
