// Makes batches in host memory: in place when all samples of the data set have one shape, else with a collate function.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/collate.h"
#include "lockstep/data/dataset.h"
#include "src/data/sets/packed_images.h"

namespace lockstep::data {

// Thrown by a maker instead of reading another sample once `stop` is true.
struct MakingStopped {};

// All members may be called from several threads at once. Exceptions of the data set or of `collate` carry the samples'
// indices. `stop` ends a batch of slow samples that is no longer needed.
class BatchMaker {
 public:
  // An empty `collate` means stack(). The data set must outlive the maker.
  BatchMaker(const Dataset& dataset, Collate collate);

  // The tensors of a sample when batches are made in place; else empty.
  const std::vector<TensorSpec>& spec() const { return spec_; }
  bool in_place() const { return !spec_.empty(); }

  // Fills `stacked`, (N, ...) of spec().
  void fill(std::span<const std::int64_t> indices, std::int64_t epoch, std::span<const Tensor> stacked,
            const std::atomic<bool>& stop) const;
  // Returns new CPU tensors.
  Batch make(std::span<const std::int64_t> indices, std::int64_t epoch, const std::atomic<bool>& stop) const;
  // Reads images as they are stored; `targets` is (N) int64.
  void fill_images(std::span<const std::int64_t> indices, std::int64_t epoch, const PackedImages& packed,
                   const Tensor& targets, const std::atomic<bool>& stop) const;

 private:
  Batch collate(std::span<const std::int64_t> indices, std::int64_t epoch, const std::atomic<bool>& stop) const;

  const Dataset& dataset_;
  const Collate collate_;
  std::vector<TensorSpec> spec_;
};

}  // namespace lockstep::data
