// Files of named tensors in the safetensors format (github.com/huggingface/safetensors), which Python can also read and
// write.
//
//   save_safetensors("net.safetensors", net.state_dict(), {{"epoch", "3"}});
//   net.load_state_dict(load_safetensors("net.safetensors").tensors);
//
// train/checkpoint.h saves the state of a training run; its model.safetensors is such a file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct Safetensors {
  FileTensors tensors;  // on the CPU, each in its own memory, in the order of their bytes in the file
  std::map<std::string, std::string> metadata;
  // Tensors of types or shapes that Lockstep does not support (BOOL, F8_E4M3, 7 dimensions, ...): name and reason.
  std::map<std::string, std::string> unread;
};

struct LoadSafetensorsOptions {
  std::vector<std::string> names = {};  // read only these; empty: all
};

// Writes tensors of all dtypes from any device, in the given order and with the layout that they have in memory:
// Lockstep's convolution weights are (out, height, width, in), PyTorch's (out, in, height, width). Blocks until the
// file is on disk. It is written next to `path`, synced, and renamed, so that `path` holds either the complete new file
// or, after a crash or an error, the previous one. Throws FileError with file and reason (missing folder, full disk),
// and InvalidArgument with the tensor's name for a duplicate name, "__metadata__", text that is not UTF-8, or an
// undefined tensor. Every rank that calls it writes; in a job, call it only on rank 0. While ema.swapped() is alive,
// the parameters hold averages, which are written with the metadata {"weights": "averages"}. Unless `metadata` has its
// own "format", {"format": "lockstep", "convolution_weights": "OHWI"} is added.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// Reads and checks the entire file: lengths, types, shapes, and that every byte belongs to exactly one tensor. Throws
// FileError with file and reason if anything is wrong, and for a tensor of options.names that is missing or unread.
// Without names, logs a warning about unread tensors.
Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
