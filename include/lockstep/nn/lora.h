// Low-rank adaptation of linear layers (Hu et al. 2021, "LoRA", arXiv:2106.09685, section 4.1): a frozen weight W (O,
// I) is used as W + (alpha / rank) * B * A, of which only A (rank, I) and B (O, rank) are trained.
//
//   nn::add_lora(net, {.rank = 8, .target = ".*\\.c_attn"});   // before DistributedDataParallel and the optimizer
//   ...
//   models::save_pretrained(net, "tuned");                     // with merged weights: see models/pretrained.h
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct LoraOptions {
  std::int64_t rank = 8;
  float alpha = 16;   // the product is multiplied by alpha / rank
  float dropout = 0;  // of the input of A, while training
  // A regular expression (ECMAScript) that the whole dotted path of a Linear must match, for example ".*\\.query";
  // empty: all of them.
  std::string target = {};
  bool freeze_others = true;  // the module's own parameters require no gradient from now on
};

// Adds A, as in nn::Linear uniform in +-1/sqrt(I), and B, initially 0, to each Linear within `module` that matches, on
// the device of its weight. They are parameters of the layer, "PATH.lora_A.weight" and "PATH.lora_B.weight" (names of
// the PEFT library), so that checkpoints and state dicts have them. Returns the paths. Only calls of the layer use
// them: a module that passes a layer's weight to a function, such as feed_forward(), computes without.
//
// Calls with different targets add to each other. alpha and rank are not part of a state dict: give the same ones to
// the model that loads it.
//
// Throws InvalidArgument, and changes nothing, if no layer matches, if one that matches has such parameters already or
// shares its weight with another name (tied weights), or for a rank below 1 or above both sizes of a weight, an alpha
// that is not finite, a dropout outside [0, 1), or a target that is no regular expression.
std::vector<std::string> add_lora(Module& module, const LoraOptions& options = {});

// Adds (alpha / rank) * B * A to the weights, and removes A and B. The weights stay frozen: freeze(false) trains them.
// Throws InvalidArgument if no layer of `module` has A and B.
void merge_lora(Module& module);

// state_dict(), with the merged weights of the layers that have A and B, as copies, and without A and B. The module is
// not changed.
std::vector<NamedTensor> merged_state_dict(const Module& module);

}  // namespace lockstep::nn
#pragma GCC visibility pop
