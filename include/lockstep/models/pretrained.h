// Weights of Hugging Face's and PyTorch's models: in, and out again.
//
//   models::Gpt2 net(models::Gpt2Config::read("gpt2"));
//   models::load_pretrained(net, "gpt2", {.names = models::gpt2_names()});
//   ...
//   models::save_pretrained(net, "tuned", {.names = models::gpt2_names(), .config = net.config().json()});
//
// Files are safetensors. A pytorch_model.bin is refused: it is a pickle, which could run code; convert it with Python's
// safetensors.torch.save_file().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/models/name_mapping.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::models {

// How a file that was read is laid out, for writing the same again.
struct PretrainedLayout {
  struct Entry {
    std::string in_file, in_module;  // in_module is empty for a tensor that the module does not have
    DType dtype;
    WeightLayout layout;
  };
  std::vector<Entry> entries;  // in the order of the file, or of the shards
  std::map<std::string, std::string> metadata;
  std::string config;  // the text of config.json; empty: there was none
};

struct LoadPretrainedOptions {
  NameMapping names = {};
  bool strict = true;  // false: names that only one side has are listed in the result, not refused
  // Null: this process reads the files itself, and needs no other. Otherwise the call is collective: rank 0 reads, and
  // broadcasts the weights; an error of rank 0 is thrown on all ranks.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

struct LoadedPretrained {
  nn::IncompatibleKeys keys;  // both empty with strict
  PretrainedLayout layout;    // on rank 0, or without a group; else empty
};

// Reads weights into the module's parameters and buffers, in place, on their device. `path` is a .safetensors file, an
// index (*.safetensors.index.json) that names the files of several shards, or a folder that has model.safetensors or
// model.safetensors.index.json and perhaps config.json. Files are mapped into memory, and only the tensors that the
// module has are read. float32, float16, bfloat16 and float64 are converted to the module's type, rounded to nearest.
//
// Throws FileError for a file that is missing or damaged, for shards that the index names but that are not there or do
// not have the tensors that it promises, and for a config.json of another model_type than names.model_type; and for
// tensors that do not fit, with every name, expected and found shape, or have a type that cannot be read. The module is
// not changed then. Blocks until all is read.
LoadedPretrained load_pretrained(nn::Module& module, const std::string& path,
                                 const LoadPretrainedOptions& options = {});

struct SavePretrainedOptions {
  NameMapping names = {};  // used unless `layout` is given
  // Of an earlier load_pretrained(): writes the same names, types and order. A module that was only read gives the
  // bytes of the file that it was read from, if one file is read and written and no rule skips a tensor of it.
  const PretrainedLayout* layout = nullptr;
  std::string config = {};        // the text of config.json; empty: that of `layout`, or no file
  DType dtype = DType::kFloat32;  // of floating tensors, unless `layout` is given
  // Bytes of tensors in one file, as transformers' "50GB"; 0: all in one file, of any size.
  std::int64_t max_shard_size = 50'000'000'000;
};

// Writes folder/model.safetensors, and folder/config.json if there is a text for it; makes the folder if it is missing.
// A model of more than max_shard_size bytes becomes model-00001-of-0000N.safetensors, ..., and
// model.safetensors.index.json; a tensor that is larger has a file to itself. The folder holds the earlier model until
// the new one is complete; then shards, index or single file that the earlier one leaves over are removed. Low-rank
// matrices (nn/lora.h) are merged into the weights that are written, and the module stays as it is. In a job, call it
// only on rank 0. Throws FileError with path and reason, and InvalidArgument if the layout is empty, has a tensor that
// the module lacks, or lacks one that the module has, for a dtype of integers, and for a negative max_shard_size. Each
// file is replaced as a whole or not at all.
void save_pretrained(const nn::Module& module, const std::string& folder, const SavePretrainedOptions& options = {});

}  // namespace lockstep::models
#pragma GCC visibility pop
