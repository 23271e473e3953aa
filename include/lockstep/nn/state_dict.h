// What Module::load_state_dict() takes and returns.
#pragma once

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::nn {

// The order of the dimensions of convolutions' weights in a state dict, of two dimensions or one.
enum class ConvolutionWeights {
  kAsTheFileSays,  // InvalidArgument where a file does not, and the module has convolutions
  kOhwi,           // (out, height, width, in), (out, length, in): Lockstep's
  kOihw            // (out, in, height, width), (out, in, length): PyTorch's; they are permuted
};

struct LoadStateDictOptions {
  bool strict = true;  // every name of the module must be there, and no other
  ConvolutionWeights convolution_weights = ConvolutionWeights::kAsTheFileSays;
};

struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // of the module, not in the state dict: left as they were
  std::vector<std::string> unexpected_keys;  // of the state dict, not in the module: ignored
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
