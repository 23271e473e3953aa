// Files of named tensors in the safetensors format (github.com/huggingface/safetensors), which Python reads and writes
// too.
//
//   save_safetensors("net.safetensors", net.state_dict(), {{"epoch", "3"}});
//   net.load_state_dict(load_safetensors("net.safetensors").tensors);
//
// For a training run's own state see train/checkpoint.h, whose model.safetensors is such a file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct Safetensors {
  FileTensors tensors;  // on the CPU, each with memory of its own, in the order of their bytes in the file
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string>
      unread;  // tensors that Lockstep cannot hold (BOOL, F8_E4M3, 7 dimensions, ...), by name: why
};

struct LoadSafetensorsOptions {
  std::vector<std::string> names = {};  // read these alone; empty: all
};

// Writes all dtypes, from any device, in the given order, as the values lie in memory: Lockstep's convolutions are
// (out, height, width, in), PyTorch's (out, in, height, width). Blocks until the file is on the disk: it is written
// beside `path`, synced, and renamed, so that under `path` there is the whole new file or, after a crash or an error,
// what was there before. Throws FileError with file and reason (no folder, a full disk); InvalidArgument that names the
// tensor for a name that comes twice, "__metadata__", text that is not UTF-8, and an undefined tensor. Every rank that
// calls it writes: in a job, call it on rank 0 only. While ema.swapped() lives, parameters hold averages, which are
// what is written: the metadata then says {"weights": "averages"}. Unless `metadata` names a "format" of its own it
// says
// {"format": "lockstep", "convolution_weights": "OHWI"}.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// Reads and checks the whole file: lengths, types, shapes, and that every byte belongs to one tensor. Throws FileError
// with file and reason for all that is not exactly right, and for a tensor of options.names that is missing or unread.
// Without names a warning says what is unread.
Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
