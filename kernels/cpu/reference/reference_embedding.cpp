// Embeddings: rows of a table by index. Backward adds the gradients of each row in the order of the indices, in float32
// as on any device, so that all devices agree bit for bit.
#include <algorithm>
#include <limits>

#include "kernels/cpu/reference/reference.h"

namespace lockstep::reference {

namespace {

void embedding(In weight, In indices, Out out, Stream&) {
  const Index words = weight.shape[0], width = weight.shape[1];
  for (Index n = 0; n < indices.count(); ++n) {
    const Index word = indices.as<Index>()[n];
    float* const to = out.floats() + n * width;
    if (word >= 0 && word < words)
      std::copy_n(weight.floats() + word * width, width, to);
    else
      std::fill_n(to, width, std::numeric_limits<float>::quiet_NaN());
  }
}

void embedding_backward(In y_grad, In indices, Index padding, Out weight_grad, Stream&) {
  const Index words = weight_grad.shape[0], width = weight_grad.shape[1];
  if (!weight_grad.accumulate) std::fill_n(weight_grad.floats(), words * width, 0.0F);
  for (Index n = 0; n < indices.count(); ++n) {
    const Index word = indices.as<Index>()[n];
    if (word < 0 || word >= words || word == padding) continue;
    float* const sum = weight_grad.floats() + word * width;
    for (Index d = 0; d < width; ++d) sum[d] += y_grad.floats()[n * width + d];
  }
}

}  // namespace

void use_embedding(KernelTable& table) {
  table.embedding = in_parts<embedding, Cut::kWhole, Cut::kElements, Cut::kRows>;
  table.embedding_backward = in_parts<embedding_backward, Cut::kRows, Cut::kElements, Cut::kWhole, Cut::kSum>;
}

}  // namespace lockstep::reference
