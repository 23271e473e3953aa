// Borders around images and sequences.
#pragma once

#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

enum class PaddingMode {
  kZeros,
  kReflect,   // mirrored at the outermost pixels, which are not repeated; narrower than the image
  kReplicate  // the outermost pixels
};

// x (N, H, W, C) to (N, top + H + bottom, left + W + right, C). PyTorch lists the sides in another order: left, right,
// top, bottom. Throws InvalidArgument for a padding that is negative, or too wide for the mode.
Tensor pad2d(const Tensor& x, const Padding& padding, PaddingMode mode = PaddingMode::kZeros);
// x (N, L, C) to (N, left + L + right, C).
Tensor pad1d(const Tensor& x, const Padding1d& padding, PaddingMode mode = PaddingMode::kZeros);

}  // namespace lockstep
#pragma GCC visibility pop
