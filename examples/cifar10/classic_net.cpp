#include "examples/cifar10/classic_net.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

constexpr float kWeightDecay = 0.004f;
// The tutorial's initialisation, in the order of its layers.
constexpr struct {
  const char* layer;
  float deviation, bias;
} kInitial[] = {{"conv1", 0.05f, 0},
                {"conv2", 0.05f, 0.1f},
                {"local3", 0.04f, 0.1f},
                {"local4", 0.04f, 0.1f},
                {"softmax_linear", 1 / 192.0f, 0}};

void initialise(nn::Module& net) {
  const std::vector<ls::NamedTensor> parameters = net.named_parameters();
  for (const auto& [layer, deviation, bias] : kInitial)
    for (const auto& [name, tensor] : parameters) {
      if (name == std::string(layer) + ".weight") nn::init::truncated_normal(tensor, 0, deviation);
      if (name == std::string(layer) + ".bias") nn::init::constant(tensor, bias);
    }
}

nn::Linear& linear_named(const nn::Module& net, const std::string& wanted) {
  for (const auto& [name, child] : net.children())
    if (name == wanted) return dynamic_cast<nn::Linear&>(*child);
  throw ls::InvalidArgument("ClassicNet: there is no layer '{}'", wanted);
}

nn::Sequential& with_layers(nn::Sequential& net) {
  constexpr auto kReLU = ls::Activation::kReLU;
  const nn::Conv2dLayerOptions conv{.padding = ls::Same{}, .activation = kReLU};
  const ls::MaxPool2dOptions halve{.stride = {2, 2}, .padding = ls::Same{}};
  const ls::LrnOptions lrn{.radius = 4, .bias = 1, .alpha = 0.001f / 9, .beta = 0.75f};
  net.append_named<nn::Conv2d>("conv1", 3, 64, ls::Size2{5, 5}, conv);
  net.append_named<nn::MaxPool2d>("pool1", ls::Size2{3, 3}, halve);
  net.append_named<nn::LocalResponseNorm>("norm1", lrn);
  net.append_named<nn::Conv2d>("conv2", 64, 64, ls::Size2{5, 5}, conv);
  net.append_named<nn::LocalResponseNorm>("norm2", lrn);
  net.append_named<nn::MaxPool2d>("pool2", ls::Size2{3, 3}, halve);
  net.append_named<nn::Flatten>("flatten");
  net.append_named<nn::Linear>("local3", 6 * 6 * 64, 384, nn::LinearLayerOptions{.activation = kReLU});
  net.append_named<nn::Linear>("local4", 384, 192, nn::LinearLayerOptions{.activation = kReLU});
  net.append_named<nn::Linear>("softmax_linear", 192, 10);
  initialise(net);
  return net;
}

}  // namespace

ClassicNet::ClassicNet()
    : local3_(linear_named(with_layers(*this), "local3")), local4_(linear_named(*this, "local4")) {}

ls::Tensors ClassicNet::forward_all(const ls::Tensors& inputs) {
  check_inputs(inputs, 1);
  if (is_training()) {
    nn::add_loss(kWeightDecay * ls::l2_loss(local3_.weight), "local3/weight_loss");
    nn::add_loss(kWeightDecay * ls::l2_loss(local4_.weight), "local4/weight_loss");
  }
  return Sequential::forward_all(inputs);
}

std::vector<ls::NamedTensor> ClassicNet::activations(const ls::Tensor& images) {
  const ls::NoGrad no_grad;
  std::vector<ls::NamedTensor> all;
  ls::Tensor x = images;
  for (const auto& [name, layer] : children()) {
    x = (*layer)(x);
    if (!layer->own_parameters().empty()) all.push_back({name, x});
  }
  return all;
}
