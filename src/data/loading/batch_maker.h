// Makes batches in host memory: in place where the data set's samples have one shape, else by a collate function.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/collate.h"
#include "lockstep/data/dataset.h"
#include "src/data/sets/packed_images.h"

namespace lockstep::data {

// What a maker throws in front of the next sample once `stop` is true.
struct MakingStopped {};

// All members may be called from several threads at once. What the data set or `collate` throws comes with the samples'
// numbers. `stop` ends a batch of slow samples that nobody wants any more.
class BatchMaker {
 public:
  // An empty `collate` stands for stack(). The data set must outlive the maker.
  BatchMaker(const Dataset& dataset, Collate collate);

  // Of a sample, where batches are made in place; else empty.
  const std::vector<TensorSpec>& spec() const { return spec_; }
  bool in_place() const { return !spec_.empty(); }

  // Into `stacked`, (N, ...) of spec().
  void fill(std::span<const std::int64_t> indices, std::int64_t epoch, std::span<const Tensor> stacked,
            const std::atomic<bool>& stop) const;
  // New tensors, on the CPU.
  Batch make(std::span<const std::int64_t> indices, std::int64_t epoch, const std::atomic<bool>& stop) const;
  // Images as they are stored; `targets` (N) int64.
  void fill_images(std::span<const std::int64_t> indices, std::int64_t epoch, const PackedImages& packed,
                   const Tensor& targets, const std::atomic<bool>& stop) const;

 private:
  Batch collate(std::span<const std::int64_t> indices, std::int64_t epoch, const std::atomic<bool>& stop) const;

  const Dataset& dataset_;
  const Collate collate_;
  std::vector<TensorSpec> spec_;
};

}  // namespace lockstep::data
