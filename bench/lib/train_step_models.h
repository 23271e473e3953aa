// The networks whose steps bench/train_step times.
#pragma once

#include <memory>
#include <string>

#include "lockstep/lockstep.h"

namespace lockstep::bench {

// cifar10, cifar10-nolrn (24x24 images) or mlp (rows of 2048), each with ten classes; throws InvalidArgument for another name.
std::unique_ptr<nn::Sequential> make_model(const std::string& name);

}  // namespace lockstep::bench
