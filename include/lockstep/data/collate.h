// Functions that make a batch from a list of samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "lockstep/data/batch.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Makes a batch on the CPU from a non-empty list of samples, in their order. The loader's threads call it, at the same
// time when there are several.
using Collate = std::function<Batch(std::span<const Sample>)>;

// Stacks tensor i of all samples, (...), to (N, ...). The loader's default. Throws InvalidArgument, with both samples
// and shapes, when shapes, types or numbers of tensors differ.
Batch stack(std::span<const Sample> samples);

struct PadCollateOptions {
  double value = 0;  // the padding, converted to each tensor's type
  // The padding of the last tensor when samples have several, such as kIgnoreIndex for labels that a loss skips.
  // nullopt: `value`.
  std::optional<double> target_value = {};
  bool front = false;           // padding goes before the elements instead of after them
  std::int64_t max_length = 0;  // longer tensors are cut to it; 0: the length of the batch's longest
  bool to_max_length = false;   // pad every batch to max_length instead of to its longest sample
  bool cut_front = false;       // cut the start of longer tensors instead of their end
  bool lengths = false;         // append a tensor (N) int64 with the length of each sample's first tensor after cutting
};

// Stacks tensors whose first extents differ: shorter ones are padded to the longest of the batch. Tensors of rank 0,
// labels, are stacked. All other extents must be equal. The returned function throws InvalidArgument when samples do
// not fit together, or when `value` is not representable in the tensor's type (1e9 in int8, 0.5 in int64).
// pad_collate() itself throws InvalidArgument for a negative max_length, and for to_max_length without a max_length.
Collate pad_collate(const PadCollateOptions& options);
Collate pad_collate(double value = 0);

}  // namespace lockstep::data
#pragma GCC visibility pop
