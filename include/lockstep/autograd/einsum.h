// Einstein's summation.
#pragma once

#include <string_view>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// einsum("bij,bjk->bik", a, b): each letter, a to z or A to Z, is a dimension; spaces are ignored. The result has the
// letters behind "->", in their order; all others are summed. Without "->" it has those that occur once, in
// alphabetical order, as in PyTorch. Any pattern of one operand (transposes, sums) or two (products, summed over
// letters of both or of one) that permute(), sum() and matmul() can compute. Differentiable. Throws InvalidArgument,
// which names the pattern: for a letter that one operand has twice (a diagonal), an ellipsis, extents that differ, and
// more than six dimensions.
Tensor einsum(std::string_view pattern, const Tensor& a);
Tensor einsum(std::string_view pattern, const Tensor& a, const Tensor& b);

}  // namespace lockstep
#pragma GCC visibility pop
