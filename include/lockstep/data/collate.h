// How a list of samples becomes a batch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "lockstep/data/batch.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// A batch, on the CPU, of samples in their order; never of none. Called from the loader's threads, from several at once
// when it has several.
using Collate = std::function<Batch(std::span<const Sample>)>;

// Stacks tensor i of all samples, (...), to (N, ...): the loader's default. Throws InvalidArgument when shapes, types
// or numbers of tensors differ, with both samples and shapes.
Batch stack(std::span<const Sample> samples);

struct PadCollateOptions {
  double value = 0;  // of the padding, in each tensor's type
  // Of the last tensor's padding, where samples have several: kIgnoreIndex for labels that a loss leaves out. Nothing:
  // value.
  std::optional<double> target_value = {};
  bool front = false;           // the padding lies before the elements, not behind them
  std::int64_t max_length = 0;  // longer tensors are cut; 0: as long as the batch's longest
  bool to_max_length = false;   // all batches are max_length long, not only as long as their longest
  bool cut_front = false;       // longer tensors lose their begin, not their end
  bool lengths =
      false;  // the batch has one more tensor, (N) int64: the length of each sample's first tensor, as it was cut
};

// Stacks tensors whose first extents differ (ragged ones): shorter ones are padded to the longest of the batch. Tensors
// without extents, labels, are stacked. Other extents must be equal. What it returns throws InvalidArgument when
// samples do not fit together, and when `value` is none of the tensor's type (1e9 in int8, 0.5 in int64); pad_collate()
// itself for a max_length below 0, or of 0 beside to_max_length.
Collate pad_collate(const PadCollateOptions& options);
Collate pad_collate(double value = 0);

}  // namespace lockstep::data
#pragma GCC visibility pop
