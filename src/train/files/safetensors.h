// The safetensors format (github.com/huggingface/safetensors): 8 bytes length, a JSON header, then the tensors' bytes.
// Checkpoints and the files of lockstep/train/safetensors.h are written and parsed here.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"
#include "src/train/files/durable_file.h"

namespace lockstep {

// The header's JSON, padded to 8 bytes. Throws InvalidArgument for what the format cannot hold: see save_safetensors().
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
  std::map<std::string, std::string> unread;  // of a type or of more dimensions than Lockstep has, by name: why
};

// Throws FileError naming `path` for anything that is not exactly right: lengths, offsets, gaps, overlaps, a name that
// comes twice.
SavedTensors parse_safetensors(std::span<const std::byte> file, const std::string& path);
// The same of a file of Lockstep's, in which each tensor can be read: FileError for one that cannot.
SavedTensors parse_own_safetensors(std::span<const std::byte> file, const std::string& path);

}  // namespace lockstep
