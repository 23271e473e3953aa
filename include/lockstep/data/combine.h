// Data sets made of tensors, and of other data sets.
//
// They keep the sets that they are made of: a set given by value is copied, or moved in by std::move; the library's own
// sets share their contents with their copies. A set that cannot be copied, or should not be, comes as a
// std::shared_ptr. All are read when a sample is asked for; what a set throws passes through. A sample that a set does
// not have throws InvalidArgument.
//
// The order of samples is the sampler's, batches are the loader's: there is no set that shuffles or batches.
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

// A data set that another one keeps; see above. Made of the set where it is an argument.
class KeptDataset {
 public:
  template <typename Set>
  requires std::derived_from<std::remove_cvref_t<Set>, Dataset> KeptDataset(Set&& set)
      : set_(std::make_shared<const std::remove_cvref_t<Set>>(std::forward<Set>(set))) {}
  template <std::derived_from<Dataset> Set>
  KeptDataset(std::shared_ptr<Set> set) : set_(std::move(set)) {
    check();
  }
  const Dataset& operator*() const { return *set_; }
  const Dataset* operator->() const { return set_.get(); }

 private:
  void check() const;  // InvalidArgument for a null pointer

  std::shared_ptr<const Dataset> set_;
};

// Tensors whose first extents are equal, N: sample i is row i of each.
class TensorDataset : public FixedShapeDataset {
 public:
  // On the CPU, of any types; their memory is shared. Throws InvalidArgument for none, one without extents, or
  // different first extents.
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

// Sample i is function(sample i of the set), made anew each time. Called from the loader's threads, several at once.
MappedDataset map(KeptDataset set, std::function<Sample(Sample sample)> function);
// The same with random numbers, which are drawn from (seed, epoch, index).
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

// Keeps each sample in memory, once it was read, as epoch 0 sees it in every epoch: so a resumed run sees what the
// first one saw. Random augmentation belongs behind it: map(cache(set), ...).
CachedDataset cache(KeptDataset set);

// Some samples of a set, in an order of their own. Augmentation is that of the samples' numbers in the set.
class Subset : public Dataset, public ImageSource {
 public:
  // Throws InvalidArgument for an index that the set does not have.
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

// The first `count` samples, or those behind them. Throw InvalidArgument when the set has fewer.
Subset take(KeptDataset set, std::int64_t count);
Subset skip(KeptDataset set, std::int64_t count);
// Parts of these sizes, which together are the set's, chosen at random from the seed: for training and validation.
std::vector<Subset> random_split(KeptDataset set, const std::vector<std::int64_t>& sizes, std::uint64_t seed = 0);

// One set behind the other.
class ConcatDataset : public Dataset {
 public:
  explicit ConcatDataset(std::vector<KeptDataset> sets);  // InvalidArgument for none
  std::int64_t size() const override { return ends_.back(); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;
  std::vector<TensorSpec> element_spec() const override;  // where it is the same in all sets
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  std::pair<const Dataset*, std::int64_t> place(std::int64_t index) const;

  std::vector<KeptDataset> sets_;
  std::vector<std::int64_t> ends_;  // of each set, in this one's numbers
};

ConcatDataset concatenate(std::vector<KeptDataset> sets);

}  // namespace lockstep::data
#pragma GCC visibility pop
