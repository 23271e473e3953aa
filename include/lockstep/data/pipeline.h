// A data set's path to the model as a chain of calls with the names of tf.data:
//
//   const auto train = data::Pipeline(articles).shuffle(1000).batch(32).prefetch().cache();
//   for (auto& [inputs, targets] : train.epoch(0, {.place = group->place()})) ...
//
// Each call returns a new pipeline and leaves this one unchanged. A pipeline is only a plan: it reads nothing before
// epoch(). It combines the sets of combine.h, a DistributedSampler and a DataLoader for each pass.
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
  Place place = {};          // this rank's place among the ranks that share the samples
  Device* device = nullptr;  // where batches are placed; null: the CPU
  // kPad: the last batch may be smaller. kDrop, and always after batch(size, {.drop_remainder = true}): full batches
  // only. kExact: each sample is on exactly one rank; some ranks may have one less.
  Remainder remainder = Remainder::kPad;
  std::int64_t first_batch = 0;  // earlier batches, counted over all ranks together, are skipped without reading them
};

struct BatchOptions {
  Collate collate = {};
  // true: leaves out the samples that remain at the end of an epoch, as tf.data's drop_remainder.
  bool drop_remainder = false;
};

// One pass of a pipeline, which keeps its parts alive. Iterate over it as over a DataLoader.
class PipelineEpoch {
 public:
  PipelineEpoch(PipelineEpoch&&) = default;
  PipelineEpoch& operator=(PipelineEpoch&& other) noexcept;  // stops its own threads first
  DataLoader::Iterator begin() { return loader_->begin(); }
  std::default_sentinel_t end() const { return {}; }
  std::int64_t batches() const { return loader_->batches(); }  // on this rank

 private:
  friend class Pipeline;
  PipelineEpoch(KeptDataset set, DistributedSampler sampler, const DataLoaderOptions& options);

  KeptDataset set_;
  std::unique_ptr<DistributedSampler> sampler_;
  std::unique_ptr<DataLoader> loader_;
};

class Pipeline {
 public:
  // Keeps the set as combine.h describes: in its own order, without batches.
  template <typename Set>
  requires std::derived_from<std::remove_cvref_t<Set>, Dataset> Pipeline(Set&& set) : set_(std::forward<Set>(set)) {}
  template <std::derived_from<Dataset> Set> Pipeline(std::shared_ptr<Set> set) : set_(std::move(set)) {}
  explicit Pipeline(KeptDataset set) : set_(std::move(set)) {}

  // Maps samples. Throws InvalidArgument after batch(), where tf.data would map batches.
  Pipeline map(std::function<Sample(Sample sample)> function) const;
  // With random numbers drawn from (seed, epoch, index).
  Pipeline map(MappedDataset::Function function, std::uint64_t seed) const;
  // The first `count` samples, or those after them. After shuffle(), both use the order of epoch 0, the same in every
  // epoch, so that take(n) and skip(n) of one shuffled pipeline have no sample in common. (tf.data draws anew in each
  // epoch, unless reshuffle_each_iteration = False.)
  Pipeline take(std::int64_t count) const;
  Pipeline skip(std::int64_t count) const;

  // Keeps samples in memory after they are first read, as the preceding map() calls made them in epoch 0. After
  // shuffle() and batch(), each epoch still has its own order and batches, where tf.data would repeat the first
  // epoch's.
  Pipeline cache() const;

  // Gives each epoch its own order, drawn from (seed, epoch), the same on all ranks. `buffer` works as in tf.data; 0
  // shuffles the entire set, at no extra cost. Throws InvalidArgument for a negative buffer or a second shuffle().
  Pipeline shuffle(std::int64_t buffer = 0, std::uint64_t seed = 0) const;
  // Batches of `size` samples over all ranks together. Throws InvalidArgument below 1, or for a second batch().
  Pipeline batch(std::int64_t size, Collate collate = {}) const;
  Pipeline batch(std::int64_t size, const BatchOptions& options) const;
  // For a Reader (data/reader.h): passes over the set, each with its own order if it shuffles; 0: endless.
  // Trainer::fit() takes an endless set with .steps_per_epoch. Throws InvalidArgument for a negative count or a second
  // repeat().
  Pipeline repeat(std::int64_t count = 0) const;
  // The number of batches prepared in advance, and of threads that make them. Throws InvalidArgument below 1.
  Pipeline prefetch(int batches = 2, int num_workers = 1) const;

  const Dataset& dataset() const { return *set_; }  // the result of map(), cache(), take() and skip()
  std::int64_t size() const { return set_->size(); }
  bool is_shuffled() const { return shuffles_; }
  std::uint64_t shuffle_seed() const { return seed_; }     // 0 if it is not shuffled
  std::int64_t shuffle_buffer() const { return buffer_; }  // samples; 0: the entire set
  std::int64_t batch_size() const { return batch_size_; }  // over all ranks; 0 without batch()
  const Collate& collate() const { return collate_; }
  std::int64_t repeats() const { return repeats_; }  // 0: endless
  bool drops_remainder() const { return drops_; }
  // Batches in an epoch, over all ranks; the last one may be smaller, unless drops_remainder().
  std::int64_t batches() const;

  // Returns one rank's batches of batch_size() / world size samples. Throws InvalidArgument without batch(), for an
  // empty set, for a batch size that the number of ranks does not divide, for a batch larger than the set with kDrop,
  // and for a first_batch beyond the epoch.
  PipelineEpoch epoch(std::int64_t epoch, const EpochOptions& options = {}) const;

 private:
  void check_samples(const char* call) const;
  KeptDataset in_order() const;

  KeptDataset set_;
  bool shuffles_ = false, drops_ = false;
  std::int64_t buffer_ = 0, batch_size_ = 0, repeats_ = 1;
  std::uint64_t seed_ = 0;
  int prefetch_ = 2, workers_ = 1;
  Collate collate_ = {};
};

}  // namespace lockstep::data
#pragma GCC visibility pop
