// Data sets made from tensors and from other data sets.
//
// A combined set keeps the sets that it is made from. A set passed by value is copied, or moved with std::move; copies
// of the library's own sets share their contents. Pass a std::shared_ptr for a set that cannot or should not be copied.
// The underlying sets are read when a sample is requested, and their exceptions pass through. An index out of range
// throws InvalidArgument.
//
// The sampler orders the samples and the loader makes the batches, so no set shuffles or batches.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/tensor/random.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// A data set kept by another one; see above. It converts implicitly from a set passed as an argument.
class KeptDataset {
 public:
  template <typename Set>
  requires std::derived_from<std::remove_cvref_t<Set>, Dataset> KeptDataset(Set&& set)
      : set_(std::make_shared<const std::remove_cvref_t<Set>>(std::forward<Set>(set))) {}
  template <std::derived_from<Dataset> Set> KeptDataset(std::shared_ptr<Set> set) : set_(std::move(set)) { check(); }
  const Dataset& operator*() const { return *set_; }
  const Dataset* operator->() const { return set_.get(); }

 private:
  void check() const;  // InvalidArgument for a null pointer

  std::shared_ptr<const Dataset> set_;
};

// Tensors with equal first extents, N: sample i is row i of each.
class TensorDataset : public FixedShapeDataset {
 public:
  // CPU tensors of any types; the set shares their memory. Throws InvalidArgument for an empty list, a tensor of rank 0
  // or different first extents.
  explicit TensorDataset(std::vector<Tensor> tensors);
  std::int64_t size() const override { return tensors_[0].shape()[0]; }
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  std::vector<Tensor> tensors_;
};

class MappedDataset : public Dataset {
 public:
  using Function = std::function<Sample(Sample sample, Philox& random)>;
  MappedDataset(KeptDataset set, Function function, std::uint64_t seed);
  std::int64_t size() const override { return set_->size(); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;

 private:
  KeptDataset set_;
  Function function_;
  std::uint64_t seed_;
};

// Sample i is function(sample i of the set), computed anew on each read. The loader's threads call it, several at the
// same time.
MappedDataset map(KeptDataset set, std::function<Sample(Sample sample)> function);
// The same for a function that takes random numbers, drawn from (seed, epoch, index).
MappedDataset map(KeptDataset set, MappedDataset::Function function, std::uint64_t seed);

class CachedDataset : public Dataset {
 public:
  explicit CachedDataset(KeptDataset set);
  std::int64_t size() const override;
  Sample get(std::int64_t index, std::int64_t epoch) const override;
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with copies
};

// Keeps each sample in memory after it is first read, as epoch 0 sees it, and returns it in every epoch: a resumed run
// sees the same samples as the first one. Apply random augmentation after it: map(cache(set), ...).
CachedDataset cache(KeptDataset set);

// Selected samples of a set in the given order. Augmentation uses the samples' indices in the underlying set.
class Subset : public Dataset, public ImageSource {
 public:
  // Throws InvalidArgument for an index out of range.
  Subset(KeptDataset set, std::vector<std::int64_t> indices);
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;
  std::vector<TensorSpec> element_spec() const override { return set_->element_spec(); }
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

  const ImageSource* images() const override { return set_->images() != nullptr ? this : nullptr; }
  std::int64_t side() const override { return set_->images()->side(); }
  std::int64_t crop() const override { return set_->images()->crop(); }
  ImageNormalization normalization() const override { return set_->images()->normalization(); }
  void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                  std::int64_t& target) const override;

 private:
  std::int64_t place(std::int64_t index) const;

  KeptDataset set_;
  std::vector<std::int64_t> indices_;
};

// The first `count` samples, or all samples after them. Throws InvalidArgument when the set has fewer.
Subset take(KeptDataset set, std::int64_t count);
Subset skip(KeptDataset set, std::int64_t count);
// Splits the set at random, by the seed, into parts of these sizes, for training and validation. The sizes must add up
// to the set's size.
std::vector<Subset> random_split(KeptDataset set, const std::vector<std::int64_t>& sizes, std::uint64_t seed = 0);

// The samples of several sets one after the other.
class ConcatDataset : public Dataset {
 public:
  explicit ConcatDataset(std::vector<KeptDataset> sets);  // InvalidArgument for an empty list
  std::int64_t size() const override { return ends_.back(); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;
  std::vector<TensorSpec> element_spec() const override;  // not empty when it is the same in all sets
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  std::pair<const Dataset*, std::int64_t> place(std::int64_t index) const;

  std::vector<KeptDataset> sets_;
  std::vector<std::int64_t> ends_;  // where each set ends, as an index of this set
};

ConcatDataset concatenate(std::vector<KeptDataset> sets);

}  // namespace lockstep::data
#pragma GCC visibility pop
