// Writes the weights of a pretrained model as transformers does: one safetensors file, or shards and their index.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep::models {

// Which tensors each shard has, as indices into `bytes`. The tensors keep their order. A shard is closed before the
// tensor that would take it over `most`; a larger tensor has a shard to itself.
std::vector<std::vector<std::size_t>> plan_shards(std::span<const std::uint64_t> bytes, std::uint64_t most);

// The folder loads as its earlier model until the new one is complete, and as the new one from then on. What the
// earlier one leaves over (its shards, its index, its single file) is removed then. Throws as save_pretrained() does;
// on an error before the new model is complete, removes the shards that were written.
void write_pretrained(const std::string& folder, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata, std::uint64_t max_shard_bytes);

}  // namespace lockstep::models
