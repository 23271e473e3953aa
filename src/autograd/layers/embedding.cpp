#include "lockstep/autograd/embedding.h"

#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// Saved: indices.
class EmbeddingNode : public Node {
 public:
  EmbeddingNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, std::int64_t padding)
      : Node(std::move(inputs), std::move(saved)), padding_(padding) {}
  const char* name() const override { return "embedding"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).embedding_backward(result_grad, saved(0), padding_, targets[0], stream_of(result_grad));
  }

 private:
  std::int64_t padding_;
};

// Checks only on the CPU, as for labels: on a GPU the host would have to wait.
void check_indices(const Tensor& indices, const Tensor& weight) {
  if (indices.device().kind() != DeviceKind::kCpu) return;
  const std::int64_t words = weight.shape()[0];
  const auto values = indices.span<std::int64_t>();
  for (std::size_t at = 0; at < values.size(); ++at)
    if (values[at] < 0 || values[at] >= words)
      throw InvalidArgument("embedding: index {} at position {} is outside 0..{}, the rows of {}", values[at], at,
                            words - 1, name_argument("weight", weight));
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices, std::int64_t padding) {
  check_input("embedding", "weight (V, D)", weight, 2);
  check_input("embedding", "indices", indices, kAnyDims, &weight.device(), DType::kInt64);
  const std::int64_t words = weight.shape()[0], width = weight.shape()[1];
  if (padding != kNoPadding && (padding < 0 || padding >= words))
    throw InvalidArgument("embedding: padding {} is outside 0..{}, the rows of {}", padding, words - 1,
                          name_argument("weight", weight));
  check_indices(indices, weight);
  std::vector<std::int64_t> extents(indices.shape().extents().begin(), indices.shape().extents().end());
  extents.push_back(width);
  const Tensor y = empty_like(weight, Shape(extents), AutoCast::active());
  kernels_of(weight).embedding(weight, indices, y, stream_of(weight));
  record<EmbeddingNode>(y, {weight}, std::vector{indices}, padding);
  return y;
}

}  // namespace lockstep
