// A data set's way to the model as a chain of calls, named as tf.data's:
//
//   const auto train = data::Pipeline(articles).shuffle(1000).batch(32).prefetch().cache();
//   for (auto& [inputs, targets] : train.epoch(0, {.place = group->place()})) ...
//
// Each call returns a further pipeline and leaves this one as it is. A pipeline is a plan: it reads nothing before
// epoch(). It is put together of what data/ has: sets of sets (combine.h), a DistributedSampler and a DataLoader for
// each pass.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/data/combine.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct EpochOptions {
  Place place = {};          // of this rank among those that share the samples out
  Device* device = nullptr;  // where batches go; null: the CPU
  // kPad: the last batch may be smaller. kDrop: whole batches alone. kExact: each sample on one rank, some ranks may
  // have one less.
  Remainder remainder = Remainder::kPad;
  std::int64_t first_batch = 0;  // those before it, of all ranks together, are passed over unread
};

// One pass of a pipeline over its set, in which it keeps its part of: to be iterated as a DataLoader.
class PipelineEpoch {
 public:
  PipelineEpoch(PipelineEpoch&&) = default;
  PipelineEpoch& operator=(PipelineEpoch&& other) noexcept;  // ends its own threads first
  DataLoader::Iterator begin() { return loader_->begin(); }
  std::default_sentinel_t end() const { return {}; }
  std::int64_t batches() const { return loader_->batches(); }  // of this rank

 private:
  friend class Pipeline;
  PipelineEpoch(KeptDataset set, DistributedSampler sampler, const DataLoaderOptions& options);

  KeptDataset set_;
  std::unique_ptr<DistributedSampler> sampler_;
  std::unique_ptr<DataLoader> loader_;
};

class Pipeline {
 public:
  // Of a set, which is kept as sets of sets keep theirs (combine.h): in its own order, without batches.
  template <typename Set>
  requires std::derived_from<std::remove_cvref_t<Set>, Dataset> Pipeline(Set&& set) : set_(std::forward<Set>(set)) {}
  template <std::derived_from<Dataset> Set>
  Pipeline(std::shared_ptr<Set> set) : set_(std::move(set)) {}

  // Of samples: InvalidArgument behind batch(), where tf.data's would be of batches.
  Pipeline map(std::function<Sample(Sample sample)> function) const;
  Pipeline map(MappedDataset::Function function,
               std::uint64_t seed) const;  // with random numbers, drawn from (seed, epoch, index)
  // The first `count` samples, or those after them. After shuffle() of its order in epoch 0: the same samples in every
  // epoch, so that take(n) and skip(n) of one shuffled pipeline are two parts without a common sample. (tf.data draws
  // anew in each epoch, unless reshuffle_each_iteration = False.)
  Pipeline take(std::int64_t count) const;
  Pipeline skip(std::int64_t count) const;

  // Keeps samples in memory once they were read: wherever it stands, samples as map() before it made them in epoch 0.
  // So behind shuffle() and batch() each epoch still has an order and batches of its own, where tf.data's would repeat
  // those of the first.
  Pipeline cache() const;

  // Each epoch in an order of its own, drawn from (seed, epoch), the same on all ranks. A buffer as tf.data's; 0: the
  // whole set, which costs nothing here. InvalidArgument: a negative buffer, a second shuffle().
  Pipeline shuffle(std::int64_t buffer = 0, std::uint64_t seed = 0) const;
  // Of `size` samples over all ranks together. InvalidArgument: below 1, or a second batch().
  Pipeline batch(std::int64_t size, Collate collate = {}) const;
  // Batches made ahead, by so many threads. InvalidArgument below 1.
  Pipeline prefetch(int batches = 2, int num_workers = 1) const;

  const Dataset& dataset() const { return *set_; }  // what map(), cache(), take() and skip() made
  std::int64_t size() const { return set_->size(); }
  bool is_shuffled() const { return shuffles_; }
  std::int64_t batch_size() const { return batch_size_; }  // over all ranks; 0 without batch()
  const Collate& collate() const { return collate_; }
  std::int64_t batches() const;  // whole ones in an epoch, over all ranks

  // The batches of one rank: batch_size() / world size samples each. Throws InvalidArgument without batch(), for an
  // empty set, for a batch that the ranks do not divide, one that is larger than the set where whole ones are asked
  // for, and a first_batch that the epoch does not have.
  PipelineEpoch epoch(std::int64_t epoch, const EpochOptions& options = {}) const;

 private:
  void check_samples(const char* call) const;
  KeptDataset in_order() const;

  KeptDataset set_;
  bool shuffles_ = false;
  std::int64_t buffer_ = 0, batch_size_ = 0;
  std::uint64_t seed_ = 0;
  int prefetch_ = 2, workers_ = 1;
  Collate collate_ = {};
};

}  // namespace lockstep::data
#pragma GCC visibility pop
