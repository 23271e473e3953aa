#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

thread_local DType cast_active = DType::kFloat32;

void check_type(const char* operation, DType type) {
  if (type != DType::kFloat32 && type != DType::kFloat16 && type != DType::kBFloat16)
    throw InvalidArgument("{}: float32, float16 or bfloat16 expected, got {}", operation, name_of(type));
}

class CastNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "cast"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    targets[0].give(result_grad);
  }
};

}  // namespace

AutoCast::AutoCast(DType type) : before_(cast_active) {
  check_type("AutoCast", type);
  cast_active = type;
}
AutoCast::~AutoCast() { cast_active = before_; }
DType AutoCast::active() { return cast_active; }

DType autocast_type(std::string_view name) {
  for (const auto& [type, short_name] :
       {std::pair(DType::kFloat32, "fp32"), std::pair(DType::kBFloat16, "bf16"), std::pair(DType::kFloat16, "fp16")})
    if (name == name_of(type) || name == short_name) return type;
  throw InvalidArgument("mixed precision: expected float32, bfloat16, float16, fp32, bf16 or fp16, got '{}'", name);
}

Tensor cast(const Tensor& x, DType type) {
  check_type("cast", type);
  check_activation("cast", "x", x);
  if (x.dtype() == type) return x;
  const Tensor y = empty_like(x, x.shape(), type);
  kernels_of(x).convert(x, y, stream_of(x));
  record<CastNode>(y, {x});
  return y;
}

}  // namespace lockstep
