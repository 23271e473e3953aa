// Embedding: looks up rows of a table by index.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

inline constexpr std::int64_t kNoPadding = -1;

// weight (V, D), float32; indices (...), int64, in [0, V). Returns (..., D) in float32, or under an AutoCast in its
// type. The row `padding` gets no gradient. On the CPU, throws InvalidArgument for an index outside [0, V); on a GPU,
// where checking would block the host, such a row becomes NaN. Backward adds rows in the order of the indices, so
// results are reproducible bit for bit. On a GPU, up to 1024 blocks of threads share the rows of the weight, and each
// reads all indices.
Tensor embedding(const Tensor& weight, const Tensor& indices, std::int64_t padding = kNoPadding);

}  // namespace lockstep
#pragma GCC visibility pop
