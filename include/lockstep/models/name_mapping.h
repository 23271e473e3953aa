// How the tensors of another framework's file correspond to those of a module.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::models {

// The layout of a weight in the file. Convolution weights need none: they are (out, in, height, width) or (out, in,
// length) in a file unless its metadata has "convolution_weights": "OHWI", and are permuted.
struct WeightLayout {
  enum Kind {
    kSame,          // as in the module
    kTransposed,    // (in, out) for (out, in): transformers' Conv1D
    kChannelsFirst  // a Linear that follows a flatten of images: its inputs are in the order of C, H, W
  };
  Kind kind = kSame;
  std::array<std::int64_t, 3> image = {0, 0, 0};  // C, H, W; only for kChannelsFirst
};

// One rule. Patterns are regular expressions (ECMAScript) that a whole name must match; in the replacements $1, $2, ...
// are their groups.
struct NameRule {
  std::string in_file;    // pattern for a name in the file
  std::string in_module;  // its replacement, the name in the module; empty: the file's tensor is skipped
  WeightLayout layout = {};
  // For save_pretrained(): a pattern for a name in the module, and its replacement. Empty: the rule is not used there.
  std::string written_pattern = {}, written_name = {};
};

// The first rule that matches a name applies. A name that no rule matches stays as it is, and the tensor has the
// module's layout.
struct NameMapping {
  // The value that config.json must have for model_type, if it is read: not next to a single file. Empty: any.
  std::string model_type = {};
  std::vector<NameRule> rules = {};
};

// The mappings of the models in this folder. They fit files of transformers' models with and without the head of
// pretraining (others need strict = false), and with and without the prefix of the base model ("transformer.", "bert.",
// "model.").
NameMapping gpt2_names();
NameMapping bert_names();
NameMapping llama_names();
NameMapping torchvision_resnet_names();

}  // namespace lockstep::models
#pragma GCC visibility pop
