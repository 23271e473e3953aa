// The type in which each operator computes under an AutoCast (the table of docs/gpu.md), the conversion of operands of
// different types, and that gradients have each operand's own type.
#include "lockstep/autograd/autocast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/image_padding.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/upsample.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::vector<float> floats_of(const Tensor& x) {
  const Tensor wide = cast(x, DType::kFloat32);
  return {wide.span<float>().begin(), wide.span<float>().end()};
}

// Whole numbers that 16 bits can hold, from 1 on.
Tensor counted(const Shape& shape, DType type = DType::kFloat32) {
  const Tensor x = Tensor::empty(shape);
  float next = 0;
  for (float& value : x.span<float>()) value = static_cast<float>(static_cast<int>(next++) % 5 + 1);
  return cast(x, type);
}

Tensor leaf(const Tensor& x) {
  require_grad(x);
  return x;
}

using Binary = std::function<Tensor(const Tensor& a, const Tensor& b)>;
struct NamedBinary {
  std::string name;
  Binary call;
};

// Operators that convert to the widest type.
std::vector<NamedBinary> widest() {
  const auto mask = [](const Tensor& x) { return gt(x, 2.F); };
  return {{"add", [](const Tensor& a, const Tensor& b) { return a + b; }},
          {"sub", [](const Tensor& a, const Tensor& b) { return a - b; }},
          {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }},
          {"div", [](const Tensor& a, const Tensor& b) { return a / b; }},
          {"pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }},
          {"where", [mask](const Tensor& a, const Tensor& b) { return where(mask(a), a, b); }},
          {"concat",
           [](const Tensor& a, const Tensor& b) {
             return concat({a, b}, 1);
           }},
          {"stack", [](const Tensor& a, const Tensor& b) {
             return stack({a, b}, 1);
           }}};
}

class AutoCastTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AutoCastTypes, ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AutoCastTypes, UnlikeOperandsTakeTheWidestAndGradientsTheirOwn) {
  const DType other = GetParam() == DType::kBFloat16 ? DType::kFloat16 : DType::kBFloat16;
  for (const auto& [name, call] : widest())
    for (const auto& [left, right] : {std::pair(GetParam(), DType::kFloat32), std::pair(DType::kFloat32, GetParam()),
                                      std::pair(GetParam(), other)}) {
      SCOPED_TRACE(name + " of " + std::string(name_of(left)) + " and " + std::string(name_of(right)));
      const Tensor a = leaf(counted({2, 3}, left)), b = leaf(counted({2, 3}, right));
      const Tensor wide_a = leaf(counted({2, 3})), wide_b = leaf(counted({2, 3}));
      const Tensor expected = call(wide_a, wide_b);
      expected.backward({.gradient = Tensor::full(expected.shape(), 1)});
      const AutoCast half(GetParam());
      const Tensor y = call(a, b);
      ASSERT_EQ(y.dtype(), DType::kFloat32);
      EXPECT_EQ(floats_of(y), floats_of(expected));
      y.backward({.gradient = Tensor::full(y.shape(), 1)});
      EXPECT_EQ(grad(a).dtype(), left);
      EXPECT_EQ(grad(b).dtype(), right);
      EXPECT_EQ(floats_of(grad(a)), floats_of(cast(grad(wide_a), left)));
      EXPECT_EQ(floats_of(grad(b)), floats_of(cast(grad(wide_b), right)));
    }
}

TEST_P(AutoCastTypes, LikeOperandsStayAsTheyAre) {
  const AutoCast half(GetParam());
  for (const auto& [name, call] : widest()) {
    const Tensor a = counted({2, 3}, GetParam());
    EXPECT_EQ(call(a, a).dtype(), name == "pow" ? DType::kFloat32 : GetParam()) << name;
    EXPECT_EQ(call(counted({2, 3}), counted({2, 3})).dtype(), DType::kFloat32) << name;
  }
}

TEST_P(AutoCastTypes, ComparisonsWiden) {
  const AutoCast half(GetParam());
  // 16 bits round 1.0001 to 1.
  const Tensor narrow = cast(Tensor::full({2}, 1), GetParam()), wide = Tensor::full({2}, 1.0001F);
  for (const auto compare : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(lt),
                             static_cast<Tensor (*)(const Tensor&, const Tensor&)>(le),
                             static_cast<Tensor (*)(const Tensor&, const Tensor&)>(ne)})
    EXPECT_EQ(compare(narrow, wide).span<std::uint8_t>()[0], 1);
  for (const auto compare : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(gt),
                             static_cast<Tensor (*)(const Tensor&, const Tensor&)>(ge),
                             static_cast<Tensor (*)(const Tensor&, const Tensor&)>(eq)})
    EXPECT_EQ(compare(narrow, wide).span<std::uint8_t>()[0], 0);
}

// Products with a mask of the other type, and with operands of two 16-bit types.
TEST_P(AutoCastTypes, ProductsComputeIn16BitsWhateverComes) {
  const DType other = GetParam() == DType::kBFloat16 ? DType::kFloat16 : DType::kBFloat16;
  const Tensor a = leaf(counted({2, 4, 3})), b = leaf(counted({2, 4, 3}, other)), mask = Tensor::zeros({4, 4});
  const AutoCast half(GetParam());
  const Tensor scores = matmul(a, cast(a, GetParam()), {.transpose_b = true});
  EXPECT_EQ(scores.dtype(), GetParam());
  EXPECT_EQ((scores + mask).dtype(), DType::kFloat32);
  const Tensor mixed = matmul(cast(a, GetParam()), b, {.transpose_b = true});
  EXPECT_EQ(mixed.dtype(), GetParam());
  sum(mixed + mask).backward();
  EXPECT_EQ(grad(a).dtype(), DType::kFloat32);
  EXPECT_EQ(grad(b).dtype(), other);
  const Tensor q = counted({1, 4, 2, 3}), k = counted({1, 4, 2, 3}, other), v = counted({1, 4, 2, 3}, GetParam());
  EXPECT_EQ(scaled_dot_product_attention(q, k, v).dtype(), GetParam());
}

struct Unary {
  std::string name;
  std::function<Tensor(const Tensor& x)> call;
  bool is_float32;  // under an AutoCast, also with 16-bit input
};

// One line for each operator with one activation, except those of elementwise_test.cpp: the table of docs/gpu.md.
std::vector<Unary> unary_operators() {
  const Tensor weight = Tensor::full({4}, 1), bias = Tensor::zeros({4});
  return {
      {"pow of a constant", [](const Tensor& x) { return pow(2.F, x); }, true},
      {"sum", [](const Tensor& x) { return sum(x, -1); }, true},
      {"softmax", [](const Tensor& x) { return softmax(x); }, true},
      {"log_softmax", [](const Tensor& x) { return log_softmax(x); }, true},
      {"layer_norm", [=](const Tensor& x) { return layer_norm(x, {4}, weight, bias); }, false},
      {"rms_norm", [=](const Tensor& x) { return rms_norm(x, {4}, weight); }, false},
      {"group_norm", [=](const Tensor& x) { return group_norm(x, 2, weight, bias); }, false},
      {"scale_by", [](const Tensor& x) { return scale_by(x, Tensor::full({}, 2)); }, true},
      {"prod", [](const Tensor& x) { return prod(x, -1); }, true},
      {"cumsum", [](const Tensor& x) { return cumsum(x, -1); }, true},
      {"norm", [](const Tensor& x) { return norm(x); }, true},
      {"logsumexp", [](const Tensor& x) { return logsumexp(x, -1); }, true},
      {"var", [](const Tensor& x) { return var(x, -1); }, false},
      {"stddev", [](const Tensor& x) { return stddev(x, -1); }, false},
      {"sort", [](const Tensor& x) { return sort(x).values; }, false},
      {"glu", [](const Tensor& x) { return glu(x); }, false},
      {"prelu", [=](const Tensor& x) { return prelu(x, weight); }, false},
      {"scatter_add", [](const Tensor& x) { return scatter_add(x, -1, argsort(x), x); }, false},
      {"mean", [](const Tensor& x) { return mean(x, -1); }, false},
      {"max", [](const Tensor& x) { return max(x, -1).values; }, false},
      {"amax",
       [](const Tensor& x) {
         return amax(x, {0, 1});
       },
       false},
      {"batch_norm", [=](const Tensor& x) { return batch_norm(x, weight, bias, {}, {}, {.training = true}); }, false},
      {"local_response_norm", [](const Tensor& x) { return local_response_norm(x); }, false},
      {"relu", [](const Tensor& x) { return relu(x); }, false},
      {"scale", [](const Tensor& x) { return 2.F * x; }, false},
      {"add a constant", [](const Tensor& x) { return x + 1.F; }, false},
      {"bias_add", [=](const Tensor& x) { return bias_add(x, bias); }, false},
      {"dropout", [](const Tensor& x) { return dropout(x, 0.5F, true); }, false},
      {"permute",
       [](const Tensor& x) {
         return permute(x, {2, 0, 1});
       },
       false},
      {"slice", [](const Tensor& x) { return slice(x, 0, {.stop = 1}); }, false},
      {"pad",
       [](const Tensor& x) {
         return pad(x, {{1, 1}, {0, 0}, {0, 0}});
       },
       false},
      {"broadcast_to",
       [](const Tensor& x) {
         return broadcast_to(x, {2, 2, 3, 4});
       },
       false},
      {"reshape",
       [](const Tensor& x) {
         return reshape(x, {6, 4});
       },
       false},
      {"gather",
       [](const Tensor& x) {
         return gather(x, 2, Tensor::zeros({2, 3, 1}, DType::kInt64));
       },
       false},
      {"max_pool1d", [](const Tensor& x) { return max_pool1d(x, 2); }, false},
      {"avg_pool1d", [](const Tensor& x) { return avg_pool1d(x, 2); }, false},
      {"adaptive_avg_pool1d", [](const Tensor& x) { return adaptive_avg_pool1d(x, 2); }, false},
      {"adaptive_max_pool1d", [](const Tensor& x) { return adaptive_max_pool1d(x, 2); }, false},
      {"pad1d", [](const Tensor& x) { return pad1d(x, 1, PaddingMode::kReflect); }, false},
      {"dropout_channels", [](const Tensor& x) { return dropout_channels(x, 0.5F); }, false},
      {"mse_loss",
       [](const Tensor& x) {
         return mse_loss(x, Tensor::zeros({2, 3, 4}));
       },
       true},
      {"l1_loss",
       [](const Tensor& x) {
         return l1_loss(x, Tensor::zeros({2, 3, 4}));
       },
       true},
      {"binary_cross_entropy_with_logits",
       [](const Tensor& x) {
         return binary_cross_entropy_with_logits(x, Tensor::zeros({2, 3, 4}));
       },
       true},
      {"mse_loss one by one",
       [](const Tensor& x) {
         return mse_loss(x, Tensor::zeros({2, 3, 4}), Reduction::kNone);
       },
       true},
      {"l2_loss", [](const Tensor& x) { return l2_loss(x); }, true},
      {"nll_loss",
       [](const Tensor& x) {
         return nll_loss(x, Tensor::zeros({2, 3}, DType::kInt64));
       },
       true},
      {"softmax_cross_entropy",
       [](const Tensor& x) {
         return softmax_cross_entropy(x, Tensor::zeros({2, 3}, DType::kInt64));
       },
       true}};
}

TEST_P(AutoCastTypes, EachOperatorComputesInTheTypeOfItsRow) {
  for (const auto& [name, call, is_float32] : unary_operators()) {
    SCOPED_TRACE(name);
    manual_seed(1);
    const Tensor x = leaf(counted({2, 3, 4}, GetParam()));
    const bool is_always_float32 =
        name == "scale_by" || name.find("loss") != std::string::npos || name.find("entropy") != std::string::npos;
    if (!is_always_float32) {
      EXPECT_EQ(call(detach(x)).dtype(), GetParam()) << "without an AutoCast the type is x's";
    }
    const AutoCast half(GetParam());
    const Tensor y = call(x);
    EXPECT_EQ(y.dtype(), is_float32 ? DType::kFloat32 : GetParam());
    EXPECT_EQ(call(counted({2, 3, 4})).dtype(), DType::kFloat32) << "of float32";
    y.backward({.gradient = cast(Tensor::full(y.shape(), 1), y.dtype())});
    EXPECT_EQ(grad(x).dtype(), GetParam());
  }
}

// The last bits of a float32 operator's result must not be lost by rounding.
TEST_P(AutoCastTypes, SumsAndPowersOf16BitsDoNotOverflow) {
  const AutoCast half(GetParam());
  EXPECT_EQ(sum(cast(Tensor::full({300, 300}, 1), GetParam())).item(), 90000);
  EXPECT_EQ(pow(cast(Tensor::full({1}, 300), GetParam()), 2.F).item(), 90000);
  EXPECT_EQ(pow(1.1F, cast(Tensor::full({1}, 2), GetParam())).item(), pow(1.1F, Tensor::full({1}, 2)).item())
      << "for a base that 16 bits cannot hold";
}

TEST(AutoCastRefusals, UnlikeTypesWithoutOneAreNamed) {
  const Tensor wide = Tensor::zeros({2}), narrow = cast(wide, DType::kBFloat16);
  EXPECT_THAT(message_of([&] { add(narrow, wide); }),
              HasSubstr("add: bfloat16 and float32 differ: cast() b or the first input, or compute under an AutoCast"));
  EXPECT_THAT(message_of([&] { where(gt(wide, 0), narrow, wide); }), HasSubstr("where: bfloat16 and float32 differ"));
  EXPECT_THAT(message_of([&] { concat({narrow, wide}); }), HasSubstr("concat: tensor 1 is float32"));
  const AutoCast half(DType::kBFloat16);
  EXPECT_THAT(message_of([&] { add(narrow, Tensor::zeros({2}, DType::kInt64)); }), HasSubstr("int64"));
  EXPECT_THAT(message_of([&] {
                concat({narrow, Tensor::zeros({2}, DType::kInt64)});
              }),
              HasSubstr("concat: tensor 1 is int64"));
  EXPECT_EQ(concat({Tensor::zeros({2}, DType::kInt64), Tensor::zeros({2}, DType::kInt64)}).dtype(), DType::kInt64);
}

// The first lines of transformers, as users write them.
TEST_P(AutoCastTypes, TransformersFirstLinesCompute) {
  manual_seed(2);
  nn::Embedding characters{97, 12}, places{29, 12};
  nn::Linear up{12, 12};
  nn::Conv2d patches{3, 12, {4, 4}, {.stride = {4, 4}}};
  const Tensor gamma = leaf(Tensor::full({12}, 0.1F)), cls = leaf(Tensor::zeros({2, 1, 12}));
  const Tensor text = Tensor::zeros({2, 29}, DType::kInt64), x = Tensor::full({2, 29, 12}, 0.5F),
               image = Tensor::zeros({2, 8, 8, 3});
  const auto losses = [&] {
    const Tensor embedded = characters(text) + slice(places.weight, 0, {.stop = 29});
    const Tensor residual = embedded + up(x), scaled = up(residual) * gamma;
    const Tensor tokens = concat({cls, reshape(patches(image), {2, 4, 12})}, 1);
    const Tensor masked = where(gt(x, 0), up(x), x);
    return mean(scaled) + mse_loss(tokens, Tensor::full({2, 5, 12}, 1)) + mse_loss(masked, x);
  };
  const float expected = losses().item();
  const AutoCast half(GetParam());
  const Tensor loss = losses();
  EXPECT_NEAR(loss.item(), expected, 0.02);
  loss.backward();
  for (const Tensor& weight : {characters.weight, places.weight, up.weight, patches.weight, gamma, cls}) {
    ASSERT_TRUE(has_grad(weight));
    EXPECT_EQ(grad(weight).dtype(), DType::kFloat32);
  }
}

TEST_P(AutoCastTypes, AnActivationCheckpointComputesTheSameBits) {
  manual_seed(3);
  nn::Linear layer{6, 6};
  const Tensor x = leaf(counted({4, 6})), shift = leaf(Tensor::full({6}, 0.3F));
  const auto block = [&](const Tensor& input) { return softmax(layer(input) + shift) * input; };
  std::vector<std::vector<float>> gradients;
  for (const bool checkpointed : {false, true}) {
    for (const Tensor& each : {x, shift, layer.weight}) clear_grad(each);
    Tensor loss;
    {
      const AutoCast half(GetParam());
      loss = sum(checkpointed ? checkpoint(block, x) : block(x));
    }
    loss.backward();
    gradients.push_back(floats_of(grad(x)));
    gradients.push_back(floats_of(grad(layer.weight)));
  }
  EXPECT_EQ(gradients[0], gradients[2]);
  EXPECT_EQ(gradients[1], gradients[3]);
}

// y = x: its backward multiplies by the identity with an operator that converts to 16 bits.
class MultiplyingNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "multiplying"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const NoGrad no_grad;
    targets[0].give(matmul(result_grad, Tensor::full({1, 1}, 1)));
  }
};

TEST_P(AutoCastTypes, BackwardUsesTheTypesOnTheTape) {
  const Tensor x = leaf(Tensor::full({1, 1}, 2)), y = x.clone();
  record<MultiplyingNode>(y, {x});
  const Tensor loss = sum(y * 0.123456789F);
  const AutoCast half(GetParam());
  loss.backward();
  EXPECT_EQ(grad(x).item(), 0.123456789F);
}

TEST(AutoCastNames, HaveShortForms) {
  EXPECT_EQ(autocast_type("bf16"), DType::kBFloat16);
  EXPECT_EQ(autocast_type("fp16"), DType::kFloat16);
  EXPECT_EQ(autocast_type("fp32"), DType::kFloat32);
  EXPECT_THAT(message_of([] { autocast_type("half"); }),
              HasSubstr("expected float32, bfloat16, float16, fp32, bf16 or fp16, got 'half'"));
}

}  // namespace
}  // namespace lockstep
