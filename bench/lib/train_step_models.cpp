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

// Every text has `length` tokens. Without dropout, as the peers.
struct GptBench {
  models::Gpt2Config config;
  std::int64_t texts, length;
};

GptBench gpt_bench(std::int64_t vocabulary, std::int64_t length) {
  models::Gpt2Config config{.vocabulary = vocabulary};
  config.embedding_dropout = config.attention_dropout = config.dropout = 0;
  return {config, 4, length};
}

GptBench small_gpt_bench() {
  GptBench bench = gpt_bench(65, 128);
  bench.texts = 8;
  bench.config.positions = 128, bench.config.width = 256, bench.config.layers = bench.config.heads = 4;
  bench.config.gelu = GeluApproximation::kNone;
  return bench;
}

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

TrainStepModel make_gpt(const GptBench& bench, int rank) {
  const auto bound = static_cast<std::uint32_t>(bench.config.vocabulary);
  const Shape shape{bench.texts, bench.length};
  return {std::make_unique<models::Gpt2>(bench.config), bench.texts, numbers_below(bound, shape, rank),
          numbers_below(bound, shape, rank + 1)};
}

}  // namespace

TrainStepModel make_model(const std::string& name, int rank) {
  if (name == "gpt") return make_gpt(small_gpt_bench(), rank);
  if (name == "gpt2") return make_gpt(gpt_bench(50257, 64), rank);
  // As train_gpt2.cu of llm.c: whole texts, and a vocabulary that is padded for tensor cores.
  if (name == "gpt2-124m") return make_gpt(gpt_bench(50304, 1024), rank);
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
