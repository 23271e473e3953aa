#include "bench/lib/train_step_models.h"

namespace lockstep::bench {

namespace {

void add_cifar10(nn::Sequential& model, bool lrn) {
  const nn::Conv2dLayerOptions conv{.padding = Padding::all(2), .activation = Activation::kReLU};
  const MaxPool2dOptions pool{.stride = {2, 2}, .padding = Padding::all(1)};
  const LrnOptions normalise{.radius = 4, .bias = 1, .alpha = 0.001F / 9, .beta = 0.75F};
  model.append_named<nn::Conv2d>("conv1", 3, 64, Size2{5, 5}, conv);
  model.append_named<nn::MaxPool2d>("pool1", Size2{3, 3}, pool);
  if (lrn) model.append_named<nn::LocalResponseNorm>("norm1", normalise);
  model.append_named<nn::Conv2d>("conv2", 64, 64, Size2{5, 5}, conv);
  if (lrn) model.append_named<nn::LocalResponseNorm>("norm2", normalise);
  model.append_named<nn::MaxPool2d>("pool2", Size2{3, 3}, pool);
  model.append_named<nn::Flatten>("flatten");
  model.append_named<nn::Linear>("local3", 2304, 384, nn::LinearLayerOptions{.activation = Activation::kReLU});
  model.append_named<nn::Linear>("local4", 384, 192, nn::LinearLayerOptions{.activation = Activation::kReLU});
  model.append_named<nn::Linear>("softmax", 192, 10);
}

void add_mlp(nn::Sequential& model) {
  for (int i = 0; i < 4; ++i)
    model.append<nn::Linear>(2048, 2048, nn::LinearLayerOptions{.activation = Activation::kReLU});
  model.append<nn::Linear>(2048, 10);
}

nn::Conv2dLayerOptions plain_convolution(std::int64_t stride) {
  return {.stride = {stride, stride}, .padding = Padding::all(1), .bias = false};
}

// Two convolutions and a shortcut; the shortcut is subsampled by a stride, and new channels are zero (option A).
class Residual : public nn::Module {
 public:
  Residual(std::int64_t inside, std::int64_t outside, std::int64_t stride)
      : conv1_(inside, outside, {3, 3}, plain_convolution(stride)),
        conv2_(outside, outside, {3, 3}, plain_convolution(1)),
        norm1_(outside, {.activation = Activation::kReLU}),
        norm2_(outside),
        stride_(stride),
        extra_(outside - inside) {
    add("conv1", conv1_), add("norm1", norm1_), add("conv2", conv2_), add("norm2", norm2_);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = norm2_(conv2_(norm1_(conv1_(x))));
    if (stride_ == 1) return relu(y + x);
    const Range all, some{.step = stride_};
    return relu(y + pad(slice(x, {all, some, some}), {{0, 0}, {0, 0}, {0, 0}, {extra_ / 2, extra_ / 2}}));
  }
  std::string kind() const override { return "Residual"; }

 private:
  nn::Conv2d conv1_, conv2_;
  nn::BatchNorm2d norm1_, norm2_;
  std::int64_t stride_, extra_;
};

class AveragePixels : public nn::Module {
 public:
  Tensor forward(const Tensor& x) override { return mean(x, {1, 2}); }
  std::string kind() const override { return "AveragePixels"; }
};

void add_resnet20(nn::Sequential& model) {
  model.append_named<nn::Conv2d>("stem", 3, 16, Size2{3, 3}, plain_convolution(1));
  model.append_named<nn::BatchNorm2d>("norm", 16, nn::BatchNormLayerOptions{.activation = Activation::kReLU});
  std::int64_t inside = 16;
  for (const std::int64_t outside : {16, 32, 64})
    for (int block = 0; block < 3; ++block) {
      model.append_named<Residual>(fmt::format("block{}_{}", outside, block), inside, outside,
                                   inside == outside ? 1 : 2);
      inside = outside;
    }
  model.append_named<AveragePixels>("average");
  model.append_named<nn::Linear>("head", 64, 10);
}

struct GptSizes {
  std::int64_t layers, width, heads, positions, characters, texts, length;  // `length`: of each text
  GeluApproximation gelu = GeluApproximation::kNone;
  float deviation = 1;  // of the embeddings' first weights
};

constexpr GptSizes kGpt{4, 256, 4, 128, 65, 8, 128};
constexpr GptSizes kGpt2{12, 768, 12, 1024, 50257, 4, 64, GeluApproximation::kTanh, 0.02F};
// As train_gpt2.cu of llm.c: whole texts, and a vocabulary that is padded for tensor cores.
constexpr GptSizes kGpt2Small{12, 768, 12, 1024, 50304, 4, 1024, GeluApproximation::kTanh, 0.02F};

// Attention and a feed-forward pair, each after a normalisation.
class Block : public nn::Module {
 public:
  explicit Block(const GptSizes& sizes)
      : heads_(sizes.heads),
        gelu_(sizes.gelu),
        norm1_(sizes.width),
        norm2_(sizes.width),
        qkv_(sizes.width, 3 * sizes.width),
        out_(sizes.width, sizes.width),
        up_(sizes.width, 4 * sizes.width),
        down_(4 * sizes.width, sizes.width) {
    add("norm1", norm1_), add("qkv", qkv_), add("out", out_), add("norm2", norm2_), add("up", up_), add("down", down_);
  }
  Tensor forward(const Tensor& input) override {
    const Shape& shape = input.shape();  // (N, T, C)
    const Tensor qkv = reshape(qkv_(norm1_(input)), {shape[0], shape[1], 3, heads_, shape[2] / heads_});
    const auto [x, normal] =
        norm2_.of_sum(input, out_(reshape(scaled_dot_product_attention(qkv, {.causal = true}), shape)));
    return x + feed_forward(normal, {up_.weight, up_.bias, down_.weight, down_.bias}, gelu_);
  }
  std::string kind() const override { return "Block"; }

 private:
  std::int64_t heads_;
  GeluApproximation gelu_;
  nn::LayerNorm norm1_, norm2_;
  nn::Linear qkv_, out_, up_, down_;
};

// Characters (N, T) to logits (N * T, characters); the head shares the embedding's weights.
class Gpt : public nn::Module {
 public:
  explicit Gpt(const GptSizes& sizes)
      : words_(sizes.characters, sizes.width), places_(sizes.positions, sizes.width), norm_(sizes.width) {
    add("words", words_), add("places", places_);
    if (sizes.deviation != 1)
      for (const nn::Embedding* each : {&words_, &places_}) fill_normal(each->weight, 0, sizes.deviation);
    for (int i = 0; i < sizes.layers; ++i) blocks_.append<Block>(sizes);
    add("blocks", blocks_), add("norm", norm_);
  }
  Tensor forward(const Tensor& text) override {
    const Tensor x = words_(text) + slice(places_.weight, 0, {.stop = text.shape()[1]});
    const Tensor logits = matmul(norm_(blocks_(x)), words_.weight, {.transpose_b = true});
    return reshape(logits, {text.count(), words_.weight.shape()[0]});
  }
  std::string kind() const override { return "Gpt"; }

 private:
  nn::Embedding words_, places_;
  nn::Sequential blocks_;
  nn::LayerNorm norm_;
};

Tensor numbers_below(std::uint32_t bound, const Shape& shape, int rank) {
  const Tensor numbers = Tensor::empty(shape, DType::kInt64);
  Philox random(1, static_cast<std::uint64_t>(rank));
  for (std::int64_t& number : numbers.span<std::int64_t>()) number = random.below(bound);
  return numbers;
}

Tensor normal(const Shape& shape) {
  const Tensor values = Tensor::empty(shape);
  fill_normal(values, 0, 1);
  return values;
}

TrainStepModel make_gpt(const GptSizes& sizes, int rank) {
  const auto bound = static_cast<std::uint32_t>(sizes.characters);
  const Tensor text = numbers_below(bound, {sizes.texts, sizes.length}, rank);
  return {std::make_unique<Gpt>(sizes), sizes.texts, text, numbers_below(bound, {text.count()}, rank + 1)};
}

}  // namespace

TrainStepModel make_model(const std::string& name, int rank) {
  if (name == "gpt") return make_gpt(kGpt, rank);
  if (name == "gpt2") return make_gpt(kGpt2, rank);
  if (name == "gpt2-124m") return make_gpt(kGpt2Small, rank);
  auto model = std::make_unique<nn::Sequential>();
  const auto with = [&](std::int64_t batch, const Shape& shape) {
    const Tensor inputs = normal(shape);
    return TrainStepModel{std::move(model), batch, inputs, numbers_below(10, {batch}, rank)};
  };
  if (name == "cifar10" || name == "cifar10-nolrn") {
    add_cifar10(*model, name == "cifar10");
    return with(128, {128, 24, 24, 3});
  }
  if (name == "mlp") {
    add_mlp(*model);
    return with(64, {64, 2048});
  }
  if (name == "resnet20") {
    add_resnet20(*model);
    return with(64, {64, 32, 32, 3});
  }
  throw InvalidArgument(
      "train_step: --model {}: expected cifar10, cifar10-nolrn, mlp, resnet20, gpt, gpt2 or gpt2-124m", name);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, std::vector<NamedTensor> parameters,
                                                 optim::LossScaler* scaler, const std::string& optimizer) {
  if (optimizer == "adam")
    return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 1e-3F, .loss_scaler = scaler});
  if (optimizer == "sgd" || optimizer == "momentum")
    return std::make_unique<optim::SGD>(
        std::move(parameters),
        optim::SGDOptions{.lr = 0.01F, .momentum = optimizer == "momentum" ? 0.9F : 0.0F, .loss_scaler = scaler});
  if (!optimizer.empty()) throw InvalidArgument("--optimizer {}: expected sgd, momentum or adam", optimizer);
  if (name == "gpt")
    return std::make_unique<optim::AdamW>(
        std::move(parameters), optim::AdamWOptions{.lr = 1e-3F, .weight_decay = 0.1F, .loss_scaler = scaler});
  if (name == "gpt2" || name == "gpt2-124m")
    return std::make_unique<optim::AdamW>(
        std::move(parameters), optim::AdamWOptions{.lr = 1e-4F, .weight_decay = 0.0F, .loss_scaler = scaler});
  optim::SGDOptions options{.lr = 0.01F, .loss_scaler = scaler};
  if (name == "resnet20") options.momentum = 0.9F, options.weight_decay = 1e-4F;
  return std::make_unique<optim::SGD>(std::move(parameters), options);
}

}  // namespace lockstep::bench
