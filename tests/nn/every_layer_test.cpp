// Properties that hold for every layer: add a new one to layers(). Its numbers are tested elsewhere.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/nn/activations.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/branches.h"
#include "lockstep/nn/conv3d.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/image_padding.h"
#include "lockstep/nn/instance_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/pooling.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/nn/upsample.h"
#include "lockstep/tensor/random.h"

namespace lockstep {
namespace {

struct Layer {
  std::string name;  // its kind()
  std::function<std::unique_ptr<nn::Module>()> make;
  std::vector<nn::InputSpec> inputs;
};

template <typename Module, typename... Args>
Layer layer(const std::string& kind, std::vector<nn::InputSpec> inputs, Args... args) {
  return {kind, [=] { return std::make_unique<Module>(args...); }, std::move(inputs)};
}

struct TwoTowers : nn::Branches {
  TwoTowers() {
    append_named<nn::Linear>("left", 3, 4);
    append<nn::Dropout>(0.5F);
  }
};

std::vector<Layer> layers() {
  const nn::InputSpec images{{2, 6, 6, 3}}, rows{{4, 3}}, sequences{{2, 6, 3}}, volumes{{2, 4, 5, 6, 3}};
  return {
      layer<nn::Conv2d>("Conv2d", {images}, 3, 4, Size2{3, 3}),
      layer<nn::Conv1d>("Conv1d", {sequences}, 3, 4, 3),
      layer<nn::Linear>("Linear", {rows}, 3, 5),
      layer<nn::MaxPool2d>("MaxPool2d", {images}, Size2{2, 2}),
      layer<nn::AvgPool2d>("AvgPool2d", {images}, Size2{2, 2}),
      layer<nn::GlobalAvgPool2d>("GlobalAvgPool2d", {images}),
      layer<nn::MaxPool1d>("MaxPool1d", {sequences}, 2),
      layer<nn::AvgPool1d>("AvgPool1d", {sequences}, 2),
      layer<nn::LocalResponseNorm>("LocalResponseNorm", {images}),
      layer<nn::ReLU>("ReLU", {rows}),
      layer<nn::GELU>("GELU", {rows}, GeluApproximation::kTanh),
      layer<nn::SiLU>("SiLU", {rows}),
      layer<nn::Tanh>("Tanh", {rows}),
      layer<nn::Sigmoid>("Sigmoid", {rows}),
      layer<nn::Softmax>("Softmax", {rows}),
      layer<nn::LogSoftmax>("LogSoftmax", {rows}),
      layer<nn::LeakyReLU>("LeakyReLU", {rows}, 0.2f),
      layer<nn::Flatten>("Flatten", {images}),
      layer<nn::BatchNorm2d>("BatchNorm", {images}, 3),
      layer<nn::LayerNorm>("LayerNorm", {rows}, 3),
      layer<nn::RMSNorm>("RMSNorm", {rows}, 3),
      layer<nn::GroupNorm>("GroupNorm", {images}, 3, 3),
      layer<nn::MultiheadAttention>("MultiheadAttention", {sequences}, 3, 3,
                                    nn::MultiheadAttentionOptions{.causal = true, .dropout = 0.2F}),
      layer<nn::Embedding>("Embedding", {{{2, 3}, DType::kInt64}}, 5, 4),
      layer<nn::Dropout>("Dropout", {rows}, 0.5F),
      layer<TwoTowers>("Branches", {rows}),
      layer<nn::Sequential>("Sequential", {rows, rows}),
      layer<nn::Conv3d>("Conv3d", {volumes}, 3, 4, Size3{2, 3, 3}),
      layer<nn::ConvTranspose2d>("ConvTranspose2d", {images}, 3, 4, Size2{3, 3}),
      layer<nn::ConvTranspose1d>("ConvTranspose1d", {sequences}, 3, 4, 3),
      layer<nn::LSTM>("LSTM", {sequences}, 3, 4, nn::RecurrentLayerOptions{.num_layers = 2, .dropout = 0.2F}),
      layer<nn::GRU>("GRU", {sequences}, 3, 4, nn::RecurrentLayerOptions{.bidirectional = true}),
      layer<nn::Upsample>("Upsample", {images}, UpsampleOptions{.scale = 2}),
      layer<nn::AdaptiveAvgPool2d>("AdaptiveAvgPool2d", {images}, Size2{4, 5}),
      layer<nn::AdaptiveMaxPool2d>("AdaptiveMaxPool2d", {images}, Size2{4, 5}),
      layer<nn::AdaptiveAvgPool1d>("AdaptiveAvgPool1d", {sequences}, 4),
      layer<nn::AdaptiveMaxPool1d>("AdaptiveMaxPool1d", {sequences}, 4),
      layer<nn::ZeroPad2d>("ZeroPad2d", {images}, Padding{1}),
      layer<nn::ReflectionPad2d>("ReflectionPad2d", {images}, Padding{1, 2}),
      layer<nn::ReplicationPad2d>("ReplicationPad2d", {images}, Padding{1, 2}),
      layer<nn::ZeroPad1d>("ZeroPad1d", {sequences}, Padding1d{1}),
      layer<nn::ReflectionPad1d>("ReflectionPad1d", {sequences}, Padding1d{1, 2}),
      layer<nn::ReplicationPad1d>("ReplicationPad1d", {sequences}, Padding1d{1, 2}),
      layer<nn::InstanceNorm2d>("InstanceNorm", {images}, 3, nn::InstanceNormOptions{.affine = true}),
      layer<nn::Dropout2d>("Dropout2d", {images}, 0.5F),
      layer<nn::TransformerEncoderLayer>("TransformerEncoderLayer", {sequences}, 3, 3),
      layer<nn::TransformerEncoder>("TransformerEncoder", {sequences}, 2, 3, 3,
                                    nn::TransformerOptions{.feedforward = 8, .final_norm = true}),
      layer<nn::TransformerDecoderLayer>("TransformerDecoderLayer", {sequences, sequences}, 3, 3),
      layer<nn::TransformerDecoder>("TransformerDecoder", {sequences, sequences}, 2, 3, 3,
                                    nn::TransformerOptions{.feedforward = 8}),
  };
}

class EveryLayer : public ::testing::TestWithParam<Layer> {
 protected:
  void SetUp() override {
    manual_seed(8);
    module_ = GetParam().make();
    for (const auto& [shape, type] : GetParam().inputs) {
      const Tensor input = Tensor::zeros(shape, type);
      if (type == DType::kFloat32) fill_uniform(input, -1, 1);
      inputs_.push_back(input);
    }
  }

  std::unique_ptr<nn::Module> module_;
  Tensors inputs_;
};
INSTANTIATE_TEST_SUITE_P(Of, EveryLayer, ::testing::ValuesIn(layers()),
                         [](const auto& test) { return test.param.name; });

bool are_equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.buffer().data(), b.buffer().data(), a.bytes()) == 0;
}

Tensors evaluated(nn::Module& module, const Tensors& inputs) {
  const NoGrad no_grad;
  module.eval();
  Tensors outputs = module(inputs);
  module.train();
  return outputs;
}

TEST_P(EveryLayer, PrintsItsKind) {
  std::ostringstream text;
  text << *module_;
  EXPECT_EQ(text.str().rfind(GetParam().name + "(", 0), 0u) << text.str();
  if (module_->children().empty()) {
    EXPECT_EQ(text.str().find('\n'), std::string::npos) << "one line without children";
  }
}

TEST_P(EveryLayer, GivesTheSameForTheSameStateInEvalMode) {
  const Tensors first = evaluated(*module_, inputs_);
  manual_seed(9);
  const auto other = GetParam().make();
  other->load_state_dict(module_->state_dict());
  const Tensors second = evaluated(*other, inputs_);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(are_equal(first[i], second[i])) << "output " << i;
}

TEST_P(EveryLayer, IsLeftAsItIsByASummary) {
  std::vector<NamedTensor> before = module_->state_dict();
  for (NamedTensor& entry : before) entry.tensor = entry.tensor.clone();
  const RandomState random = random_state();
  EXPECT_NE(nn::summary(*module_, GetParam().inputs).find(GetParam().name), std::string::npos);
  EXPECT_EQ(random_state(), random);
  EXPECT_TRUE(module_->is_training());
  const auto after = module_->state_dict();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(are_equal(before[i].tensor, after[i].tensor)) << before[i].name;
}

TEST_P(EveryLayer, GivesItsParametersAndInputsGradients) {
  for (const Tensor& input : inputs_)
    if (input.dtype() == DType::kFloat32) require_grad(input);
  Tensor loss;
  for (const Tensor& output : (*module_)(inputs_)) loss = loss.defined() ? loss + l2_loss(output) : l2_loss(output);
  loss.backward();
  for (const auto& [name, parameter] : module_->named_parameters()) EXPECT_TRUE(has_grad(parameter)) << name;
  for (const Tensor& input : inputs_) {
    EXPECT_TRUE(input.dtype() != DType::kFloat32 || has_grad(input));
  }
}

TEST_P(EveryLayer, NamesItselfWhenItGetsTooManyInputs) {
  if (GetParam().name == "Sequential") GTEST_SKIP() << "an empty Sequential takes any number";
  if (GetParam().name == "Branches") GTEST_SKIP() << "each branch gets all, and names itself";
  Tensors more = inputs_;
  more.push_back(inputs_[0]);
  try {
    (*module_)(more);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().name), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
