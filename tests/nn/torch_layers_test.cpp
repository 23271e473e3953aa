// Layers against PyTorch's, with the same weights: outputs, and the gradients of all inputs and parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/nn/conv3d.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/image_padding.h"
#include "lockstep/nn/instance_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/nn/upsample.h"
#include "lockstep/train/safetensors.h"
#include "src/nn/module/convolutions.h"
#include "tests/support/temporary.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

// A layer, and how it is called.
struct Case {
  std::string name;
  std::function<std::unique_ptr<Module>()> make;
  std::function<Tensors(Module&, const Tensors&)> run = [](Module& module, const Tensors& inputs) {
    return module.forward_all(inputs);
  };
};

template <typename Layer, typename... Args> Case plain(const std::string& name, Args... args) {
  return {name, [=] { return std::make_unique<Layer>(args...); }};
}

const std::vector<std::int64_t> kLengths = {3, 7, 1, 5};

// With an initial state if there is more than one input.
Tensors run_lstm(Module& module, const Tensors& inputs, const std::vector<std::int64_t>& lengths) {
  RecurrentStart start{.lengths = lengths};
  if (inputs.size() > 1) start.h = inputs[1], start.c = inputs[2];
  const LstmResult y = dynamic_cast<LSTM&>(module).run(inputs[0], start);
  return {y.output, y.h, y.c};
}
Tensors run_gru(Module& module, const Tensors& inputs, const std::vector<std::int64_t>& lengths) {
  RecurrentStart start{.lengths = lengths};
  if (inputs.size() > 1) start.h = inputs[1];
  const GruResult y = dynamic_cast<GRU&>(module).run(inputs[0], start);
  return {y.output, y.h};
}

template <typename Layer> void add_recurrent(std::vector<Case>& cases, const std::string& name, auto run) {
  const auto with = [run](std::vector<std::int64_t> lengths) {
    return [run, lengths](Module& module, const Tensors& inputs) { return run(module, inputs, lengths); };
  };
  const RecurrentLayerOptions deep{.num_layers = 2, .bidirectional = true};
  cases.push_back(plain<Layer>(name, 5, 6));
  cases.push_back(plain<Layer>(name + "_deep", 5, 6, deep));
  cases.push_back(plain<Layer>(name + "_lengths", 5, 6, deep));
  cases.back().run = with(kLengths);
  cases.push_back(plain<Layer>(name + "_no_bias", 5, 6, RecurrentLayerOptions{.bias = false}));
  cases.back().run = with(kLengths);
}

TransformerOptions transformer(bool norm_first, Activation activation, bool final_norm = false) {
  return {
      .feedforward = 20, .dropout = 0, .activation = activation, .norm_first = norm_first, .final_norm = final_norm};
}

void add_transformers(std::vector<Case>& cases) {
  constexpr std::int64_t kWidth = 12, kHeads = 3;
  cases.push_back(
      plain<TransformerEncoderLayer>("encoder_layer", kWidth, kHeads, transformer(false, Activation::kReLU)));
  cases.push_back(plain<TransformerEncoder>("encoder", 2, kWidth, kHeads, transformer(true, Activation::kGELU, true)));
  cases.back().run = [](Module& module, const Tensors& inputs) -> Tensors {
    return {dynamic_cast<TransformerEncoder&>(module).encode(inputs[0], {.causal = true, .key_lengths = {2, 6, 4}})};
  };
  cases.push_back(
      plain<TransformerDecoderLayer>("decoder_layer", kWidth, kHeads, transformer(false, Activation::kGELU)));
  cases.push_back(plain<TransformerDecoder>("decoder", 2, kWidth, kHeads, transformer(true, Activation::kReLU)));
  cases.back().run = [](Module& module, const Tensors& inputs) -> Tensors {
    return {dynamic_cast<TransformerDecoder&>(module).decode(inputs[0], inputs[1], {.causal = true},
                                                             {.key_lengths = {2, 5, 4}})};
  };
  cases.push_back(plain<MultiheadAttention>("attention", kWidth, kHeads));
  cases.back().run = [](Module& module, const Tensors& inputs) -> Tensors {
    return {
        dynamic_cast<MultiheadAttention&>(module).attend(inputs[0], inputs[1], inputs[2], {.key_lengths = {2, 5, 4}})};
  };
}

void add_image_layers(std::vector<Case>& cases) {
  const auto add = [&](Case each) { cases.push_back(std::move(each)); };
  add(plain<Conv2d>("conv2d_dilated", 4, 6, Size2{3, 2},
                    Conv2dLayerOptions{.stride = {2, 1}, .padding = Padding{2, 3}, .groups = 2, .dilation = {2, 3}}));
  add(plain<Conv1d>("conv1d_dilated", 3, 5, 3, Conv1dLayerOptions{.padding = Padding1d{4}, .dilation = 4}));
  add(plain<Conv3d>("conv3d", 4, 6, Size3{2, 3, 2},
                    Conv3dLayerOptions{.stride = {2, 1, 3}, .padding = {1, 2, 0}, .groups = 2, .dilation = {3, 1, 2}}));
  add(plain<Conv3d>("conv3d_plain", 3, 5, Size3{3}, Conv3dLayerOptions{.padding = 1, .bias = false}));
  add(plain<ConvTranspose2d>(
      "conv_transpose2d", 4, 6, Size2{3, 4},
      ConvTranspose2dLayerOptions{.stride = {2, 3}, .padding = {1, 2}, .output_padding = {1, 2}}));
  add(plain<ConvTranspose2d>(
      "conv_transpose2d_groups", 4, 6, Size2{3},
      ConvTranspose2dLayerOptions{.stride = 2, .padding = 1, .output_padding = 1, .bias = false, .groups = 2}));
  add(plain<ConvTranspose2d>("conv_transpose2d_dilated", 3, 2, Size2{3}, ConvTranspose2dLayerOptions{.dilation = 2}));
  add(plain<ConvTranspose1d>("conv_transpose1d", 4, 3, 5,
                             ConvTranspose1dLayerOptions{.stride = 3, .padding = 1, .output_padding = 2}));
  add(plain<Upsample>("upsample_nearest", UpsampleOptions{.size = {7, 5}}));
  add(plain<Upsample>("upsample_scale", UpsampleOptions{.scale = 2.3}));
  constexpr UpsampleMode kBilinear = UpsampleMode::kBilinear;
  add(plain<Upsample>("upsample_bilinear", UpsampleOptions{.size = {7, 15}, .mode = kBilinear}));
  add(plain<Upsample>("upsample_bilinear_scale", UpsampleOptions{.scale = 1.7, .mode = kBilinear}));
  add(plain<Upsample>("upsample_corners", UpsampleOptions{.size = {9, 3}, .mode = kBilinear, .align_corners = true}));
  add(plain<AdaptiveAvgPool2d>("adaptive_avg_pool2d", Size2{3, 4}));
  add(plain<AdaptiveAvgPool2d>("adaptive_avg_pool2d_even", Size2{2, 3}));
  add(plain<AdaptiveMaxPool2d>("adaptive_max_pool2d", Size2{3, 4}));
  add(plain<AdaptiveAvgPool1d>("adaptive_avg_pool1d", 4));
  add(plain<AdaptiveMaxPool1d>("adaptive_max_pool1d", 9));
  const Padding sides{3, 1, 0, 2};
  add(plain<ReflectionPad2d>("reflection_pad2d", sides));
  add(plain<ReplicationPad2d>("replication_pad2d", sides));
  add(plain<ZeroPad2d>("zero_pad2d", sides));
  add(plain<ReflectionPad1d>("reflection_pad1d", Padding1d{4, 1}));
  add(plain<ReplicationPad1d>("replication_pad1d", Padding1d{6, 1}));
  add(plain<InstanceNorm2d>("instance_norm2d", 3));
  add(plain<InstanceNorm1d>("instance_norm1d", 3, InstanceNormOptions{.affine = true}));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  add_recurrent<LSTM>(all, "lstm", run_lstm);
  add_recurrent<GRU>(all, "gru", run_gru);
  add_image_layers(all);
  add_transformers(all);
  return all;
}

// The file of a case, in parts by the first letters of the names.
class Reference {
 public:
  explicit Reference(const std::string& path) : file_(train::load_safetensors(path)) {}
  FileTensors part(const std::string& prefix) const {
    FileTensors found;
    for (const NamedTensor& each : file_.tensors)
      if (each.name.starts_with(prefix)) found.push_back({each.name.substr(prefix.size()), each.tensor});
    return found;
  }
  Tensors numbered(const std::string& prefix) const {
    const FileTensors all = part(prefix);
    Tensors found(all.size());
    for (const NamedTensor& each : all) found[static_cast<std::size_t>(std::stoi(each.name))] = each.tensor;
    return found;
  }

 private:
  train::Safetensors file_;
};

class TorchLayers : public ::testing::TestWithParam<Case> {
 protected:
  static std::string python() {
    const char* named = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
    return named == nullptr ? "" : named;
  }
  static void SetUpTestSuite() {
    if (python().empty()) return;
    root_ = testing::temporary("layers");
    made_ = std::system(("'" + python() + "' '" LOCKSTEP_TORCH_LAYERS "' make '" + root_ + "'").c_str()) == 0;
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }
  void SetUp() override {
    if (python().empty()) GTEST_SKIP() << "LOCKSTEP_TEST_TORCH_PYTHON names no python with torch and safetensors";
    ASSERT_TRUE(made_);
  }

  static inline std::string root_;
  static inline bool made_ = false;
};
INSTANTIATE_TEST_SUITE_P(All, TorchLayers, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

void expect_close(const Tensor& found, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  double largest = 0, difference = 0;
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const double each = std::abs(double{found.data<float>()[i]} - expected.data<float>()[i]);
    difference = std::isnan(each) ? HUGE_VAL : std::max(difference, each);
    largest = std::max(largest, std::abs(double{expected.data<float>()[i]}));
  }
  EXPECT_LE(difference, 1e-5 * std::max(largest, 1e-3)) << what;
}

TEST_P(TorchLayers, GiveTheSameAndTheSameGradients) {
  const Reference reference(root_ + "/" + GetParam().name + ".safetensors");
  const auto module = GetParam().make();
  module->load_state_dict(reference.part("p."), {.convolution_weights = ConvolutionWeights::kOihw});
  const Tensors inputs = reference.numbered("x.");
  for (const Tensor& x : inputs) require_grad(x);
  const Tensors outputs = GetParam().run(*module, inputs), expected = reference.numbered("y."),
                weights = reference.numbered("w.");
  ASSERT_EQ(outputs.size(), expected.size());
  Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    expect_close(outputs[i], expected[i], "output " + std::to_string(i));
    const Tensor part = sum(outputs[i] * weights[i]);
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  const Tensors input_grads = reference.numbered("gx.");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    expect_close(grad(inputs[i]), input_grads[i], "gradient of input " + std::to_string(i));
  const FileTensors parameter_grads = reference.part("gp.");
  const auto convolutions = convolutions_of(*module);
  for (const auto& [name, parameter] : module->named_parameters()) {
    const auto at = std::find_if(parameter_grads.begin(), parameter_grads.end(),
                                 [&, wanted = name](const NamedTensor& each) { return each.name == wanted; });
    ASSERT_NE(at, parameter_grads.end()) << name;
    expect_close(grad(parameter), convolutions.count(name) != 0 ? channels_last(at->tensor) : at->tensor, name);
  }
}

}  // namespace
}  // namespace lockstep::nn
