#include <limits>
#include <memory>
#include <utility>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/transfer.h"
#include "lockstep/tensor/random.h"
#include "tests/models/onnx_cases.h"

namespace lockstep::models {

namespace {

using Results = std::vector<NamedResult>;

Shape with_samples(std::int64_t samples, const std::vector<std::int64_t>& rest) {
  std::vector<std::int64_t> extents = {samples};
  extents.insert(extents.end(), rest.begin(), rest.end());
  return Shape(std::span<const std::int64_t>(extents));
}

NamedResult of(const std::string& name, const std::function<Tensor(const Tensor& x)>& function) {
  return {name, [function](const Tensors& inputs) { return function(inputs[0]); }};
}
Tensor positive(const Tensor& x) { return abs(x) + 0.1F; }

Results unary_results() {
  return {of("gelu", [](const Tensor& x) { return gelu(x); }),
          of("gelu_tanh", [](const Tensor& x) { return gelu(x, GeluApproximation::kTanh); }),
          of("silu", silu),
          of("tanh", [](const Tensor& x) { return tanh(x); }),
          of("sigmoid", sigmoid),
          of("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2F); }),
          of("elu", [](const Tensor& x) { return elu(x, 0.7F); }),
          of("softplus", [](const Tensor& x) { return softplus(x); }),
          of("softplus_beta", [](const Tensor& x) { return softplus(x * 5, 2, 3); }),
          of("mish", mish),
          of("relu", relu),
          of("relu6", [](const Tensor& x) { return relu6(x * 4); }),
          of("hardsigmoid", [](const Tensor& x) { return hardsigmoid(x * 2); }),
          of("hardswish", [](const Tensor& x) { return hardswish(x * 2); }),
          of("glu", [](const Tensor& x) { return glu(x); }),
          of("prelu", [](const Tensor& x) { return prelu(x, Tensor::full({1}, 0.3F)); }),
          of("exp", [](const Tensor& x) { return exp(x); }),
          of("ln", [](const Tensor& x) { return ln(positive(x)); }),
          of("sqrt", [](const Tensor& x) { return sqrt(positive(x)); }),
          of("pow", [](const Tensor& x) { return pow(positive(x), -1.5F); }),
          of("square", [](const Tensor& x) { return pow(x, 2); }),
          of("abs", [](const Tensor& x) { return abs(x); }),
          of("neg", neg),
          of("reciprocal", [](const Tensor& x) { return 2.5F / positive(x); }),
          of("rsqrt", [](const Tensor& x) { return rsqrt(positive(x)); }),
          of("expm1", [](const Tensor& x) { return expm1(x * 3); }),
          of("expm1_near_zero", [](const Tensor& x) { return expm1(x * 1e-4F); }),
          of("log1p", [](const Tensor& x) { return log1p(positive(x) * 2); }),
          of("log1p_near_zero", [](const Tensor& x) { return log1p(x * 1e-4F); }),
          of("erf", [](const Tensor& x) { return erf(x); }),
          of("sin", [](const Tensor& x) { return sin(x); }),
          of("cos", [](const Tensor& x) { return cos(x); }),
          of("clamp", [](const Tensor& x) { return clamp(x, -0.5F, 0.25F); }),
          of("clamp_min", [](const Tensor& x) { return clamp(x, -0.5F); }),
          of("clamp_max", [](const Tensor& x) { return clamp(x, {}, 0.5F); }),
          of("sign", [](const Tensor& x) { return sign(x); }),
          of("floor", [](const Tensor& x) { return floor(x); }),
          of("ceil", [](const Tensor& x) { return ceil(x); }),
          of("round", [](const Tensor& x) { return round(x * 2); }),
          of("scale", [](const Tensor& x) { return 3 * x; }),
          of("scale_by", [](const Tensor& x) { return scale_by(x, Tensor::full({1}, 0.75F)); }),
          of("scale_by_scalar", [](const Tensor& x) { return scale_by(x, sum(x)); }),
          of("add_constant", [](const Tensor& x) { return 1 - (x + 2); }),
          of("detached", [](const Tensor& x) { return detach(x * 2) + x; }),
          of("checkpoint", [](const Tensor& x) { return checkpoint([](const Tensor& y) { return y * y; }, x); }),
          of("same_device", [](const Tensor& x) { return to_device(x + 1, x.device()); }),
          of("cast", [](const Tensor& x) { return cast(x, DType::kFloat32) + 1; })};
}

Results binary_results() {
  const auto last = [](const Tensor& b) { return squeeze(slice(slice(b, 0, {.stop = 1}), 1, {.stop = 1}), 0); };
  return {of_two("add", [](const Tensor& a, const Tensor& b) { return a + b; }),
          of_two("sub", [](const Tensor& a, const Tensor& b) { return a - b; }),
          of_two("mul", [last](const Tensor& a, const Tensor& b) { return a * last(b); }),
          of_two("div", [](const Tensor& a, const Tensor& b) { return a / positive(b); }),
          of_two("pow_of_two", [](const Tensor& a, const Tensor& b) { return pow(positive(a), b); }),
          of_two("pow_of_constant", [](const Tensor& a, const Tensor&) { return pow(2.0F, a); }),
          of_two("maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }),
          of_two("minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); }),
          of_two("bias_add",
                 [](const Tensor& a, const Tensor& b) {
                   return bias_add(a, sum(b, {0, 1}));
                 }),
          of_two("rebound",
                 [](const Tensor& a, const Tensor& b) {
                   Tensor x = a + b;
                   x += a;
                   x *= 2;
                   return x;
                 }),
          of_two("eq", [](const Tensor& a, const Tensor&) { return eq(floor(a), 0); }),
          of_two("ne", [](const Tensor& a, const Tensor& b) { return ne(floor(a), floor(b)); }),
          of_two("gt", [](const Tensor& a, const Tensor& b) { return a > b; }),
          of_two("ge", [](const Tensor& a, const Tensor&) { return a >= 0.5F; }),
          of_two("lt", [](const Tensor& a, const Tensor& b) { return a < b; }),
          of_two("le", [](const Tensor& a, const Tensor& b) { return a <= b; }),
          of_two("where", [](const Tensor& a, const Tensor& b) { return where(a > 0, a, b); }),
          of_two("masked_fill", [](const Tensor& a, const Tensor& b) { return masked_fill(a, b > 0, -1); }),
          of_two("zeros_like", [](const Tensor& a, const Tensor& b) { return where(a > b, a, zeros_like(a)); })};
}

Results shape_results() {
  return {of("reshape",
             [](const Tensor& x) {
               return reshape(x, {x.shape()[0] * 2, 2, 6});
             }),
          of("reshape_split",
             [](const Tensor& x) {
               return reshape(x, {x.shape()[0], 2, 2, 3, 2});
             }),
          of("reshape_all", [](const Tensor& x) { return reshape(x, {x.count()}); }),
          of("flatten", flatten),
          of("unsqueeze", [](const Tensor& x) { return unsqueeze(x, 0); }),
          of("squeeze",
             [](const Tensor& x) {
               return squeeze(slice(x, 2, {1, 2}), 2);
             }),
          of("permute",
             [](const Tensor& x) {
               return permute(x, {2, 0, 1});
             }),
          of("transpose", [](const Tensor& x) { return transpose(x, 1, 2); }),
          of("slice",
             [](const Tensor& x) {
               return slice(x, {{}, {1, -1}, {0, 6, 2}});
             }),
          of("slice_of_nothing",
             [](const Tensor& x) {
               return slice(x, 1, {0, 100});
             }),
          of("slice_to_the_end",
             [](const Tensor& x) {
               return slice(concat({x, slice(x, 0, {0, 1})}, 0), 0, {.start = 1});
             }),
          of("first_sample", [](const Tensor& x) { return x[0]; }),
          of("concat",
             [](const Tensor& x) {
               return concat({x, x * 2}, 2);
             }),
          of("concat_samples",
             [](const Tensor& x) {
               return concat({x, slice(x, 0, {0, 1})}, 0);
             }),
          of("stack",
             [](const Tensor& x) {
               return stack({x, -x}, 1);
             }),
          of("split", [](const Tensor& x) { return split(x, 2, 2)[2]; }),
          of("chunk", [](const Tensor& x) { return chunk(x, 2, 1)[1]; }),
          of("pad",
             [](const Tensor& x) {
               return pad(x, {{0, 0}, {1, 2}, {3, 0}}, 0.5F);
             }),
          of("broadcast_to",
             [](const Tensor& x) {
               return broadcast_to(sum(x, {1, 2}, true), x.shape());
             }),
          of("broadcast_samples", [](const Tensor& x) { return broadcast_to(sum(x, 0), x.shape()); }),
          of("broadcast_constant",
             [](const Tensor& x) {
               return broadcast_to(Tensor::full({1, 4, 6}, 2), x.shape()) * x;
             }),
          of("flip",
             [](const Tensor& x) {
               return flip(x, {1, -1});
             }),
          of("roll", [](const Tensor& x) { return roll(x, 2, 2); }),
          of("roll_back", [](const Tensor& x) { return roll(x, -7, 2); }),
          of("roll_samples", [](const Tensor& x) { return roll(x, -1, 0); }),
          of("repeat",
             [](const Tensor& x) {
               return repeat(x, {1, 2, 3});
             }),
          of("tile", [](const Tensor& x) { return tile(x, {2}); }),
          of("repeat_interleave", [](const Tensor& x) { return repeat_interleave(x, 2, 1); }),
          of("repeat_samples",
             [](const Tensor& x) {
               return repeat(x, {3, 1, 1});
             }),
          of("view",
             [](const Tensor& x) {
               return x.view({-1, 6}).t().unsqueeze(0);
             }),
          of("tril", [](const Tensor& x) { return tril(x, 1); }),
          of("triu", [](const Tensor& x) { return triu(x); })};
}

// For x (N, 4, 6) and places (N, 4, 6) from 0 to 3.
Results index_results() {
  const Tensor chosen = Tensor::from<std::int64_t>(std::vector<std::int64_t>{3, 0, 3}, {3});
  return {of_two("gather", [](const Tensor& x, const Tensor& at) { return gather(x, 2, at); }),
          of_two("gather_few",
                 [](const Tensor& x, const Tensor& at) {
                   return gather(x, 1, slice(at, 2, {0, 2}));
                 }),
          of_two("index_select", [chosen](const Tensor& x, const Tensor&) { return index_select(x, 1, chosen); }),
          of_two("index_select_read",
                 [](const Tensor& x, const Tensor& at) { return index_select(x, 1, reshape(at[0], {24})); }),
          of_two("scatter",
                 [](const Tensor& x, const Tensor& at) {
                   return scatter(x, 1, slice(at, 1, {0, 1}), x * 2);
                 }),
          of_two("scatter_value",
                 [](const Tensor& x, const Tensor& at) {
                   return scatter(x, 2, slice(at, 2, {0, 1}), 7);
                 }),
          of_two("scatter_add", [](const Tensor& x, const Tensor& at) { return scatter_add(x, 2, at, x); }),
          of_two("one_hot", [](const Tensor& x, const Tensor& at) { return one_hot(at, 4) * unsqueeze(x, 3); }),
          of_two("embedding",
                 [weight = randn({4, 5})](const Tensor&, const Tensor& at) { return embedding(weight, at, 1); }),
          of_two("integers", [](const Tensor& x, const Tensor& at) {
            const Tensor turned = flip(permute(concat({at, at}, 1), {0, 2, 1}), {2});
            return gather(x, 1, slice(turned, {{}, {0, 4}, {1, 7}}));
          })};
}

Results reduction_results() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return {of("sum", [](const Tensor& x) { return sum(x); }),
          of("sum_dims",
             [](const Tensor& x) {
               return sum(x, {0, 2}, true);
             }),
          of("mean", [](const Tensor& x) { return mean(x, -1); }),
          of("mean_of_samples", [](const Tensor& x) { return mean(x, 0); }),
          of("max", [](const Tensor& x) { return max(x, 1).values; }),
          of("max_of_all", [](const Tensor& x) { return max(x); }),
          of("min", [](const Tensor& x) { return min(x, 2, true).values; }),
          of("min_of_all", [](const Tensor& x) { return min(x); }),
          of("amax",
             [](const Tensor& x) {
               return amax(x, {0, 2});
             }),
          of("amin",
             [](const Tensor& x) {
               return amin(x, {1, 2}, true);
             }),
          of("argmax", [](const Tensor& x) { return argmax(x, 2); }),
          of("argmax_of_max", [](const Tensor& x) { return max(x, 1, true).indices; }),
          of("argmax_of_all", [](const Tensor& x) { return argmax(x); }),
          of("argmin", [](const Tensor& x) { return argmin(x, 1, true); }),
          of("argmin_of_all", [](const Tensor& x) { return argmin(x); }),
          of("prod",
             [](const Tensor& x) {
               return prod(x, {0, 1});
             }),
          of("prod_apart",
             [](const Tensor& x) {
               return prod(x, {0, 2}, true);
             }),
          of("var", [](const Tensor& x) { return var(x, 2); }),
          of("var_of_samples",
             [](const Tensor& x) {
               return var(x, {0, 1}, true);
             }),
          of("stddev",
             [](const Tensor& x) {
               return stddev(x, {1, 2}, false, 0);
             }),
          of("norm", [](const Tensor& x) { return norm(x, 2, {1}); }),
          of("norm_1",
             [](const Tensor& x) {
               return norm(x, 1, {1, 2}, true);
             }),
          of("norm_of_largest", [](const Tensor& x) { return norm(x, kInfinity, {2}); }),
          of("logsumexp", [](const Tensor& x) { return logsumexp(x * 50, {1}); }),
          of("cumsum", [](const Tensor& x) { return cumsum(x, 1); }),
          of("sort", [](const Tensor& x) { return sort(x, 1).values; }),
          of("sort_places", [](const Tensor& x) { return sort(round(x), -1, true).indices; }),
          of("topk", [](const Tensor& x) { return topk(x, 2, 2).values; }),
          of("topk_places", [](const Tensor& x) { return topk(x, 3, 1, false).indices; }),
          of("argsort", [](const Tensor& x) { return argsort(x, 1); }),
          of("softmax", [](const Tensor& x) { return softmax(x); }),
          of("softmax_of_dim", [](const Tensor& x) { return softmax(x, 1); }),
          of("log_softmax", [](const Tensor& x) { return log_softmax(x, 1); })};
}

}  // namespace

OnnxCase case_of(const std::string& name, std::function<Tensors(std::int64_t samples)> inputs,
                 std::vector<NamedResult> results, std::vector<std::shared_ptr<nn::Module>> layers) {
  OnnxCase made{name, nullptr, std::move(inputs)};
  for (const NamedResult& each : results) made.options.output_names.push_back(each.name);
  const auto compute = [results](const Tensors& given) {
    Tensors all;
    for (const NamedResult& each : results) all.push_back(each.compute(given));
    return all;
  };
  made.module = std::make_shared<FunctionModule>(compute, std::move(layers));
  return made;
}

Tensor numbers(std::int64_t samples, const std::vector<std::int64_t>& rest) {
  return randn(with_samples(samples, rest));
}

Tensor integers(std::int64_t samples, const std::vector<std::int64_t>& rest, std::int64_t bound) {
  const Tensor x = Tensor::zeros(with_samples(samples, rest), DType::kInt64);
  const Tensor drawn = rand(x.shape());
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.data<std::int64_t>()[i] = static_cast<std::int64_t>(drawn.data<float>()[i] * static_cast<float>(bound));
  return x;
}

std::vector<OnnxCase> operator_cases() {
  const auto one = [](std::int64_t samples) { return Tensors{numbers(samples, {4, 6})}; };
  const auto two = [](std::int64_t samples) { return Tensors{numbers(samples, {3, 4}), numbers(samples, {3, 4})}; };
  const auto with_places = [](std::int64_t samples) {
    return Tensors{numbers(samples, {4, 6}), integers(samples, {4, 6}, 4)};
  };
  const auto heads = [](std::int64_t samples) {
    return Tensors{numbers(samples, {4, 6, 8}), numbers(samples, {4, 3, 8}), numbers(samples, {4, 3, 8}),
                   integers(samples, {}, 5)};
  };
  std::vector<OnnxCase> cases = {
      case_of("unary", one, unary_results()),          case_of("binary", two, binary_results()),
      case_of("shapes", one, shape_results()),         case_of("indexing", with_places, index_results()),
      case_of("reductions", one, reduction_results()), case_of("products", two, product_results()),
      case_of("attention", heads, attention_results())};
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {  // the newest operators
    cases.push_back(cases[i]);
    cases.back().name += "_20";
    cases.back().options.opset = 20;
  }
  cases.push_back(cases[0]), cases.back().name += "_18", cases.back().options.opset = 18;
  cases.push_back(cases[4]), cases.back().name += "_19", cases.back().options.opset = 19;
  return cases;
}

}  // namespace lockstep::models
