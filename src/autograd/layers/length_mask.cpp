#include "src/autograd/layers/length_mask.h"

#include "lockstep/autograd/extend.h"

namespace lockstep {

namespace {

// Recorded only for a Trace: it has no input.
class LengthMaskNode : public Node {
 public:
  explicit LengthMaskNode(std::vector<std::int64_t> lengths) : Node({}), lengths_(std::move(lengths)) {}
  const char* name() const override { return "length_mask"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"lengths", lengths_}}; }
  void backward(const Tensor&, std::span<const GradTarget>) override {}

 private:
  std::vector<std::int64_t> lengths_;
};

}  // namespace

Tensor length_mask(const std::vector<std::int64_t>& lengths, std::int64_t extent, Device& device) {
  const Shape shape{static_cast<std::int64_t>(lengths.size()), extent};
  std::vector<std::uint8_t> is_inside;
  is_inside.reserve(static_cast<std::size_t>(shape.count()));
  for (const std::int64_t length : lengths)
    for (std::int64_t at = 0; at < extent; ++at) is_inside.push_back(at < length);
  const Tensor mask = Tensor::from(std::span<const std::uint8_t>(is_inside), shape, device);
  if (recording({})) attach(mask, std::make_shared<LengthMaskNode>(lengths));
  return mask;
}

}  // namespace lockstep
