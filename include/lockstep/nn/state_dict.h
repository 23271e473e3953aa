// Options and result of Module::load_state_dict().
#pragma once

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::nn {

// The order of the dimensions of one- and two-dimensional convolutions' weights in a state dict.
enum class ConvolutionWeights {
  kAsTheFileSays,  // as the file specifies; InvalidArgument if it does not and the module has convolutions
  kOhwi,           // (out, height, width, in), (out, length, in): Lockstep's
  kOihw            // (out, in, height, width), (out, in, length): PyTorch's; they are permuted
};

struct LoadStateDictOptions {
  bool strict = true;  // the names must be exactly those of the module
  ConvolutionWeights convolution_weights = ConvolutionWeights::kAsTheFileSays;
};

struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // in the module but not in the state dict: unchanged
  std::vector<std::string> unexpected_keys;  // in the state dict but not in the module: ignored
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
