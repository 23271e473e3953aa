// Convolutions by cuDNN's graphs. A graph is built once per shape, on the first call, from those of cuDNN's engines
// that stay within the workspace limit and compute as MathSettings (libraries.h) allows. It is tuned if the shape comes
// several times (engine_tuning.h), and dropped if many others came since.
#pragma once

#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

enum class Direction { kForward, kData, kWeights };

struct ConvolutionKey {
  Direction direction;
  Conv2dShape shape;
  DType type;
  bool bias, relu;
  int device = 0;  // set by run_by_cudnn()

  bool operator<(const ConvolutionKey& other) const;
};

// Runs the convolution. x, weight and y have the key's type; the one that the direction computes is written, the others
// are read. Operands that are not aligned to 16 bytes are copied. The stream's device becomes the thread's current one.
// Returns false, and computes nothing, if cuDNN has no engine that fuses bias and ReLU as the key demands, or none at
// all: the latter is logged. Throws Error if cuDNN fails, if there is no memory for its workspace, and if the key is
// new while a graph is captured.
bool run_by_cudnn(ConvolutionKey key, In x, In weight, In bias, In y, Stream& stream);

}  // namespace lockstep::cuda
