// ResNet-20 for images of CIFAR-10: the model of examples/resnet and of cifar10's recipe `modern`.
#pragma once

#include <memory>

#include "lockstep/nn/module.h"

namespace lockstep::examples {

// He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2: (N, 32, 32, 3) to logits (N, 10), 0.27
// million parameters.
std::unique_ptr<nn::Module> make_resnet20();

}  // namespace lockstep::examples
