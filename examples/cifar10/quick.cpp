// The network of TensorFlow's CIFAR-10 tutorial, trained in a few epochs with a one-cycle rate.
#include "examples/cifar10/recipe.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

// Two convolutions, each with pooling and local response normalisation, then three linear layers.
struct Net : nn::Sequential {
  Net() {
    constexpr auto kReLU = ls::Activation::kReLU;
    const ls::LrnOptions lrn{.radius = 4, .bias = 1, .alpha = 0.001f / 9, .beta = 0.75f};
    const ls::MaxPool2dOptions halve{.stride = {2, 2}, .padding = ls::Padding::all(1)};
    append_named<nn::Conv2d>("conv1", 3, 64, ls::Size2{5, 5},
                             nn::Conv2dLayerOptions{.padding = ls::Padding::all(2), .activation = kReLU});
    append_named<nn::MaxPool2d>("pool1", ls::Size2{3, 3}, halve);
    append_named<nn::LocalResponseNorm>("norm1", lrn);
    append_named<nn::Conv2d>("conv2", 64, 64, ls::Size2{5, 5},
                             nn::Conv2dLayerOptions{.padding = ls::Padding::all(2), .activation = kReLU});
    append_named<nn::LocalResponseNorm>("norm2", lrn);
    append_named<nn::MaxPool2d>("pool2", ls::Size2{3, 3}, halve);
    append_named<nn::Flatten>("flatten");
    append_named<nn::Linear>("local3", 6 * 6 * 64, 384, nn::LinearLayerOptions{.activation = kReLU});
    append_named<nn::Linear>("local4", 384, 192, nn::LinearLayerOptions{.activation = kReLU});
    append_named<nn::Linear>("softmax", 192, 10);
  }
};

std::unique_ptr<nn::Module> make_net() { return std::make_unique<Net>(); }
ls::optim::Schedule one_cycle(float peak, std::int64_t total_steps) {
  return ls::optim::OneCycleRate{peak, total_steps};
}

}  // namespace

const Recipe kQuick = {.name = "quick",
                       .purpose = "one-cycle rate, momentum 0.9",
                       .make_net = make_net,
                       .augmentation = ls::data::ImageAugmentation::tutorial(),
                       .peak_rate = 0.05f,
                       .generated_rate = 0.02f,
                       .momentum = 0.9f,
                       .make_rate = one_cycle};
