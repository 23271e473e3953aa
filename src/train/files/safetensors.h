// The safetensors format (github.com/huggingface/safetensors): 8 bytes length, a JSON header, then the tensors' bytes.
// Checkpoints and lockstep/train/safetensors.h use it.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"
#include "src/train/files/durable_file.h"

namespace lockstep::train {

// The header's JSON, padded to 8 bytes. Throws InvalidArgument for names and tensors that the format cannot hold: see
// save_safetensors().
std::string safetensors_header(const std::vector<NamedTensor>& tensors,
                               const std::map<std::string, std::string>& metadata);

// Tensors are written in the given order, little-endian, without gaps.
void write_safetensors(DurableFile& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

// The same file in memory.
std::vector<std::byte> safetensors_bytes(const std::vector<NamedTensor>& tensors,
                                         const std::map<std::string, std::string>& metadata);

struct SavedTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::span<const std::byte> data;  // a view of what was parsed
};

struct SavedTensors {
  std::map<std::string, std::string> metadata;
  std::vector<SavedTensor> tensors;
  std::map<std::string, std::string> unread;  // by name: why Lockstep cannot read it (its type, or too many dimensions)
};

// Throws FileError with `path` for anything that is not exactly right: lengths, offsets, gaps, overlaps, duplicate
// names.
SavedTensors parse_safetensors(std::span<const std::byte> file, const std::string& path);
// The same for a file that Lockstep wrote: throws FileError also for a tensor that cannot be read.
SavedTensors parse_own_safetensors(std::span<const std::byte> file, const std::string& path);

}  // namespace lockstep::train
