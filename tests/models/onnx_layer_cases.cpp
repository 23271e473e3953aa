#include <memory>
#include <utility>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/recurrent.h"
#include "lockstep/models/bert.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/llama.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/activations.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/branches.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/conv3d.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/instance_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/lora.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/pooling.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/nn/upsample.h"
#include "lockstep/tensor/random.h"
#include "tests/models/onnx_cases.h"

namespace lockstep::models {

namespace {

using Inputs = std::function<Tensors(std::int64_t samples)>;

struct Towers : nn::Branches {
  Towers() { append_named<nn::Linear>("left", 6, 4), append_named<nn::Linear>("right", 6, 3); }
};

// A layer on the case's only input, with random weights, biases and statistics.
template <typename Layer, typename... Args> void add_layer(std::vector<OnnxCase>& cases, const std::string& name,
                                                           const std::vector<std::int64_t>& input, Args&&... args) {
  auto layer = std::make_shared<Layer>(std::forward<Args>(args)...);
  for (const NamedTensor& each : layer->state_dict()) fill_uniform(each.tensor, 0.1F, 0.9F);
  cases.push_back({name, layer, [input](std::int64_t samples) { return Tensors{numbers(samples, input)}; }});
}

void add_image_layers(std::vector<OnnxCase>& cases) {
  const std::vector<std::int64_t> images = {9, 8, 4}, sequences = {9, 4};
  add_layer<nn::Conv2d>(cases, "Conv2d", images, 4, 6, Size2{3, 2});
  add_layer<nn::Conv2d>(
      cases, "Conv2d_options", images, 4, 6, Size2{3, 3},
      nn::Conv2dLayerOptions{
          .stride = 2, .padding = Same{}, .activation = Activation::kReLU, .bias = false, .groups = 2});
  add_layer<nn::Conv1d>(cases, "Conv1d", sequences, 4, 6, 3, nn::Conv1dLayerOptions{.stride = 2, .padding = 1});
  add_layer<nn::MaxPool2d>(cases, "MaxPool2d", images, Size2{3, 2}, MaxPool2dOptions{.stride = 2, .padding = 1});
  add_layer<nn::AvgPool2d>(cases, "AvgPool2d", images, Size2{2, 2}, AvgPool2dOptions{.stride = 1, .padding = 1});
  add_layer<nn::AvgPool2d>(cases, "AvgPool2d_inside", images, Size2{3, 3},
                           AvgPool2dOptions{.padding = Same{}, .count_include_pad = false});
  add_layer<nn::GlobalAvgPool2d>(cases, "GlobalAvgPool2d", images);
  add_layer<nn::MaxPool1d>(cases, "MaxPool1d", sequences, 2);
  add_layer<nn::AvgPool1d>(cases, "AvgPool1d", sequences, 3, AvgPool1dOptions{.stride = 2, .padding = 1});
  add_layer<nn::LocalResponseNorm>(cases, "LocalResponseNorm", images, LrnOptions{.radius = 1, .alpha = 0.5F});
  add_layer<nn::LocalResponseNorm>(cases, "LocalResponseNorm_rows", {7});
  add_layer<nn::LocalResponseNorm>(cases, "LocalResponseNorm_sequences", {5, 7});
  add_layer<nn::LocalResponseNorm>(cases, "LocalResponseNorm_volumes", {3, 2, 4, 5, 7});
  add_layer<nn::BatchNorm>(cases, "BatchNorm_images", images, 4,
                           nn::BatchNormLayerOptions{.activation = Activation::kReLU});
  add_layer<nn::BatchNorm>(cases, "BatchNorm_sequences", sequences, 4, nn::BatchNormLayerOptions{.affine = false});
  add_layer<nn::BatchNorm>(cases, "BatchNorm_rows", {4}, 4);
  add_layer<nn::GroupNorm>(cases, "GroupNorm", images, 2, 4);
  add_layer<nn::Flatten>(cases, "Flatten", images);
}

void add_resampling_layers(std::vector<OnnxCase>& cases) {
  const std::vector<std::int64_t> images = {9, 8, 4}, sequences = {9, 4};
  add_layer<nn::Conv2d>(cases, "Conv2d_dilated", images, 4, 6, Size2{3, 2}, nn::Conv2dLayerOptions{.dilation = {2, 3}});
  add_layer<nn::Conv3d>(cases, "Conv3d", {5, 4, 6, 4}, 4, 6, Size3{2, 3, 2},
                        nn::Conv3dLayerOptions{.stride = {1, 1, 2}, .padding = {1, 0, 1}, .groups = 2});
  add_layer<nn::ConvTranspose2d>(
      cases, "ConvTranspose2d", images, 4, 6, Size2{3, 2},
      nn::ConvTranspose2dLayerOptions{
          .stride = {2, 3}, .padding = {1, 0, 0, 1}, .output_padding = {1, 2}, .groups = 2, .dilation = {2, 1}});
  add_layer<nn::ConvTranspose1d>(cases, "ConvTranspose1d", sequences, 4, 6, 3,
                                 nn::ConvTranspose1dLayerOptions{.stride = 2, .bias = false});
  add_layer<nn::Upsample>(cases, "Upsample_nearest", images, UpsampleOptions{.size = {20, 5}});
  add_layer<nn::Upsample>(cases, "Upsample_scale", images, UpsampleOptions{.scale = {1.5, 2.25}});
  add_layer<nn::Upsample>(cases, "Upsample_fewer", {14, 28, 2}, UpsampleOptions{.size = {8, 16}});
  add_layer<nn::Upsample>(cases, "Upsample_fewer_by_scale", {20, 14, 2}, UpsampleOptions{.scale = {0.6, 8.0 / 14}});
  add_layer<nn::Upsample>(cases, "Upsample_bilinear", images,
                          UpsampleOptions{.scale = {1.5, 2.25}, .mode = UpsampleMode::kBilinear});
  add_layer<nn::Upsample>(cases, "Upsample_corners", images,
                          UpsampleOptions{.size = {5, 13}, .mode = UpsampleMode::kBilinear, .align_corners = true});
  add_layer<nn::AdaptiveAvgPool2d>(cases, "AdaptiveAvgPool2d", images, Size2{4, 3});
  add_layer<nn::AdaptiveMaxPool2d>(cases, "AdaptiveMaxPool2d", images, Size2{4, 3});
  add_layer<nn::AdaptiveAvgPool1d>(cases, "AdaptiveAvgPool1d", sequences, 4);
  add_layer<nn::AdaptiveMaxPool1d>(cases, "AdaptiveMaxPool1d", sequences, 4);
  add_layer<nn::InstanceNorm>(cases, "InstanceNorm2d", images, 4);
}

// Lengths of 0 to 5 steps after x, with the output and the final states.
template <typename Layer> void add_padded_layer(std::vector<OnnxCase>& cases, const std::string& name) {
  add_layer<Layer>(cases, name, {5, 6}, 6, 4, nn::RecurrentLayerOptions{.num_layers = 2, .bidirectional = true});
  cases.back().inputs = [](std::int64_t samples) {
    return Tensors{numbers(samples, {5, 6}), integers(samples, {}, 6)};
  };
}

// A layer in each direction with lengths and initial states, which samples without steps keep.
OnnxCase padded_states_case() {
  const Tensor of_x = randn({16, 6}), of_h = randn({16, 4}), of_x3 = randn({12, 6}), of_h3 = randn({12, 4});
  const auto compute = [=](const Tensors& in) {
    const Tensor steps = transpose(in[0], 0, 1);
    Tensors results;
    for (const bool reversed : {false, true}) {
      const LstmResult lstm =
          lstm_layer(steps, {of_x, of_h, {}, {}}, {.reversed = reversed, .lengths = in[3], .h = in[1], .c = in[2]});
      const GruResult gru =
          gru_layer(steps, {of_x3, of_h3, {}, {}}, {.reversed = reversed, .lengths = in[3], .h = in[1]});
      for (const Tensor& each : {lstm.output, lstm.h, lstm.c, gru.output, gru.h}) results.push_back(each);
    }
    return results;
  };
  const Inputs inputs = [](std::int64_t samples) {
    return Tensors{numbers(samples, {5, 6}), numbers(samples, {4}), numbers(samples, {4}), integers(samples, {}, 6)};
  };
  return {"recurrent_states", std::make_shared<FunctionModule>(compute), inputs};
}

void add_recurrent_layers(std::vector<OnnxCase>& cases) {
  const std::vector<std::int64_t> sequences = {5, 6};
  add_layer<nn::LSTM>(cases, "LSTM", sequences, 6, 4);
  add_layer<nn::LSTM>(cases, "LSTM_layers", sequences, 6, 4,
                      nn::RecurrentLayerOptions{.num_layers = 2, .bidirectional = true});
  add_layer<nn::GRU>(cases, "GRU", sequences, 6, 4, nn::RecurrentLayerOptions{.bias = false});
  add_layer<nn::GRU>(cases, "GRU_layers", sequences, 6, 4,
                     nn::RecurrentLayerOptions{.num_layers = 2, .bidirectional = true});
  add_padded_layer<nn::LSTM>(cases, "LSTM_padded");
  add_padded_layer<nn::GRU>(cases, "GRU_padded");
  cases.push_back(padded_states_case());
  add_layer<nn::TransformerEncoder>(cases, "TransformerEncoder", sequences, 2, 6, 2,
                                    nn::TransformerOptions{.feedforward = 8});
}

void add_other_layers(std::vector<OnnxCase>& cases) {
  const std::vector<std::int64_t> rows = {6}, sequences = {5, 6};
  add_layer<nn::Linear>(cases, "Linear", rows, 6, 3);
  add_layer<nn::Linear>(cases, "Linear_sequences", sequences, 6, 3,
                        nn::LinearLayerOptions{.activation = Activation::kSiLU, .bias = false});
  add_layer<nn::LayerNorm>(cases, "LayerNorm", sequences, 6);
  add_layer<nn::LayerNorm>(cases, "LayerNorm_plain", sequences, Shape{5, 6},
                           nn::LayerNormOptions{.weight = false, .bias = false});
  add_layer<nn::RMSNorm>(cases, "RMSNorm", sequences, 6);
  add_layer<nn::MultiheadAttention>(cases, "attention_layer", sequences, 6, 2,
                                    nn::MultiheadAttentionOptions{.causal = true});
  add_layer<nn::Dropout>(cases, "Dropout", rows, 0.5F);
  add_layer<nn::Softmax>(cases, "Softmax", sequences, 1);
  add_layer<nn::LogSoftmax>(cases, "LogSoftmax", sequences);
  add_layer<nn::ReLU>(cases, "ReLU", rows);
  add_layer<nn::GELU>(cases, "GELU", rows);
  add_layer<nn::SiLU>(cases, "SiLU", rows);
  add_layer<nn::Tanh>(cases, "Tanh", rows);
  add_layer<nn::Sigmoid>(cases, "Sigmoid", rows);
  add_layer<nn::LeakyReLU>(cases, "LeakyReLU", rows);
  add_layer<nn::ELU>(cases, "ELU", rows);
  add_layer<nn::Softplus>(cases, "Softplus", rows);
  add_layer<nn::Hardswish>(cases, "Hardswish", rows);
  add_layer<nn::ReLU6>(cases, "ReLU6", rows);
  add_layer<nn::Mish>(cases, "Mish", rows);
  add_layer<nn::PReLU>(cases, "PReLU", rows, 6);
  add_layer<nn::GLU>(cases, "GLU", rows);
  add_layer<nn::Identity>(cases, "Identity", rows);
  add_layer<Towers>(cases, "Branches", rows);
  const Inputs ids = [](std::int64_t samples) { return Tensors{integers(samples, {5}, 9)}; };
  cases.push_back({"Embedding", std::make_shared<nn::Embedding>(9, 4, 0), ids});
}

// Two convolutions whose transposes cancel, a shortcut, a sum of a vector, and a weight of two layers.
OnnxCase shortcut_case() {
  auto first = std::make_shared<nn::Conv2d>(3, 3, 3, nn::Conv2dLayerOptions{.padding = 1});
  auto second = std::make_shared<nn::Conv2d>(6, 3, 3, nn::Conv2dLayerOptions{.padding = 1});
  auto tied = std::make_shared<nn::Embedding>(5, 3);
  const auto compute = [=](const Tensors& in) {
    const Tensor hidden = silu((*first)(in[0])), z = concat({hidden, in[0] * 2}, 3);
    const Tensor y = relu((*second)(z) + hidden);
    const Tensor shifted = y * slice(tied->weight, 0, {0, 1}) + 1;
    return Tensors{linear(concat({shifted, y}, 0), tied->weight, {}), mean(shifted, {1, 2})};
  };
  return {"shortcut",
          std::make_shared<FunctionModule>(compute, std::vector<std::shared_ptr<nn::Module>>{first, second, tied}),
          [](std::int64_t samples) {
            return Tensors{numbers(samples, {6, 5, 3})};
          }};
}

Inputs tokens(std::int64_t length) {
  return [=](std::int64_t samples) { return Tensors{integers(samples, {length}, 50)}; };
}

// ids, lengths and types to the hidden state, the mean of the real positions, and the pooled first position.
OnnxCase bert_case() {
  auto bert = std::make_shared<Bert>(
      BertConfig{.vocabulary = 50, .positions = 16, .width = 32, .layers = 2, .heads = 4, .inner = 64});
  const auto compute = [bert](const Tensors& in) {
    const auto span = in[1].span<std::int64_t>();
    const std::vector<std::int64_t> lengths(span.begin(), span.end());
    const Tensor hidden = bert->encode(in[0], lengths, in[2]);
    return Tensors{hidden, normalize(mean_pooling(hidden, lengths)), bert->pool(hidden)};
  };
  const Inputs inputs = [](std::int64_t samples) {
    return Tensors{integers(samples, {9}, 50), integers(samples, {}, 10), integers(samples, {9}, 2)};
  };
  return {"bert",
          std::make_shared<FunctionModule>(compute, std::vector<std::shared_ptr<nn::Module>>{bert}),
          inputs,
          {.input_names = {"ids", "lengths", "types"}, .output_names = {"hidden", "mean", "pooled"}}};
}

}  // namespace

std::vector<OnnxCase> layer_cases() {
  std::vector<OnnxCase> cases;
  add_image_layers(cases);
  add_resampling_layers(cases);
  add_recurrent_layers(cases);
  add_other_layers(cases);
  cases.push_back(shortcut_case());
  return cases;
}

std::vector<OnnxCase> model_cases() {
  const LlamaConfig small{.vocabulary = 50, .positions = 16, .width = 32, .inner = 48, .layers = 2, .heads = 4};
  LlamaConfig llama = small, qwen = small;
  llama.key_value_heads = 2;
  qwen.family = "qwen3", qwen.key_value_heads = 1, qwen.head_width = 16, qwen.tied_embeddings = true;
  const auto images = [](std::int64_t samples) { return Tensors{numbers(samples, {33, 32, 3})}; };
  auto lora =
      std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 50, .positions = 16, .width = 32, .layers = 1, .heads = 4});
  nn::add_lora(*lora, {.rank = 2});
  return {{"gpt2",
           std::make_shared<Gpt2>(Gpt2Config{.vocabulary = 50, .positions = 16, .width = 32, .layers = 2, .heads = 4}),
           tokens(7),
           {.input_names = {"ids"}, .output_names = {"logits"}, .batch_name = "sentences"}},
          {"gpt2_lora", lora, tokens(7), {.opset = 20}},
          bert_case(),
          {"bert_plain",
           std::make_shared<Bert>(
               BertConfig{.vocabulary = 50, .positions = 16, .width = 32, .layers = 1, .heads = 4, .inner = 64}),
           tokens(9)},
          {"llama", std::make_shared<Llama>(llama), tokens(7)},
          {"qwen3", std::make_shared<Llama>(qwen), tokens(7)},
          {"resnet18", std::make_shared<ResNet>(ResNetConfig::resnet18()), images, {.most_bytes_in_file = 1000}},
          {"resnet50", std::make_shared<ResNet>(ResNetConfig::resnet50()), images, {.opset = 18}}};
}

}  // namespace lockstep::models
