#include "src/autograd/layers/length_mask.h"

#include "lockstep/autograd/extend.h"

namespace lockstep {

namespace {

// Recorded only for a Trace: it has no input.
class LengthMaskNode : public Node {
 public:
  LengthMaskNode(std::vector<std::int64_t> lengths, bool is_steps_first)
      : Node({}), lengths_(std::move(lengths)), is_steps_first_(is_steps_first) {}
  const char* name() const override { return "length_mask"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"lengths", lengths_}, {"is_steps_first", std::int64_t{is_steps_first_}}};
  }
  void backward(const Tensor&, std::span<const GradTarget>) override {}

 private:
  std::vector<std::int64_t> lengths_;
  bool is_steps_first_;
};

Tensor recorded_mask(const std::vector<std::uint8_t>& is_inside, const Shape& shape, Device& device,
                     const std::vector<std::int64_t>& lengths, bool is_steps_first) {
  const Tensor mask = Tensor::from(std::span<const std::uint8_t>(is_inside), shape, device);
  if (recording({})) attach(mask, std::make_shared<LengthMaskNode>(lengths, is_steps_first));
  return mask;
}

}  // namespace

Tensor length_mask(const std::vector<std::int64_t>& lengths, std::int64_t extent, Device& device) {
  const Shape shape{static_cast<std::int64_t>(lengths.size()), extent};
  std::vector<std::uint8_t> is_inside;
  is_inside.reserve(static_cast<std::size_t>(shape.count()));
  for (const std::int64_t length : lengths)
    for (std::int64_t at = 0; at < extent; ++at) is_inside.push_back(at < length);
  return recorded_mask(is_inside, shape, device, lengths, /*is_steps_first=*/false);
}

Tensor step_mask(const std::vector<std::int64_t>& lengths, std::int64_t steps, Device& device) {
  std::vector<std::uint8_t> is_inside;
  for (std::int64_t step = 0; step < steps; ++step)
    for (const std::int64_t length : lengths) is_inside.push_back(step < length);
  return recorded_mask(is_inside, {steps, static_cast<std::int64_t>(lengths.size()), 1}, device, lengths,
                       /*is_steps_first=*/true);
}

}  // namespace lockstep
