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

}  // namespace

std::unique_ptr<nn::Sequential> make_model(const std::string& name) {
  auto model = std::make_unique<nn::Sequential>();
  if (name == "cifar10" || name == "cifar10-nolrn") {
    add_cifar10(*model, name == "cifar10");
  } else if (name == "mlp") {
    for (int i = 0; i < 4; ++i) model->append<nn::Linear>(2048, 2048, nn::LinearLayerOptions{.activation = Activation::kReLU});
    model->append<nn::Linear>(2048, 10);
  } else {
    throw InvalidArgument("train_step: --model {} is none of cifar10, cifar10-nolrn, mlp", name);
  }
  return model;
}

}  // namespace lockstep::bench
