// DataLoader: batches of this rank's samples, made ahead on threads.
//
// For a GPU the threads fill pinned memory, which is copied on a stream of its own while the GPU computes. The iterator
// waits until a batch is on its way; that it has come is left to the GPU's default stream, which goes on behind the
// copy. So the host may be some prefetch + 2 steps ahead of the GPU, and then waits for it.
//
//   for (auto& [inputs, targets] : DataLoader(train, sampler, {.batch_size = 128, .num_workers = 4})) ...
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>

#include "lockstep/data/collate.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;  // of this rank
  Device* device = nullptr;     // where batches go; null: the CPU
  bool drop_last = false;       // leave out the last, smaller batch
  int prefetch = 2;             // batches made ahead; on a GPU its memory holds that many more
  int num_workers = 1;          // threads that make batches, each a whole one; order and values do not depend on it
  Collate collate =
      {};  // makes a batch of a list of samples; empty: stack(), in place where the set has an element_spec()
};

// One pass over what the sampler has left for this rank, from its present position. begin() starts the threads;
// destroying the loader, or begin() again, ends them (and waits for copies under way, and for the sample that each
// thread is reading). Iterating, begin() and the destructor belong to the thread that computes. While a pass stands at
// a batch, that thread's sample_numbers() (tensor/random.h) are those of the batch's rows among all ranks' samples, so
// that dropout's masks do not depend on the number of ranks; with the pass's end they are what they were before it.
//
// An exception of the data set or of `collate` is rethrown by the iterator, behind the batches before it: of the same
// class of lockstep::Error (Error for one that is none), with the sample's index and epoch before its text, and the
// first exception nested in it. It ends the pass. Once a pass has ended, by its last batch or by an exception, no
// thread reads the data set any more.
class DataLoader {
 public:
  // Throws InvalidArgument when the sampler was made for more samples than the set has (for fewer: a subset, the first
  // ones), or when the batch is larger than what the sampler holds and drop_last leaves nothing, or for a batch_size,
  // prefetch or num_workers below 1, or for a batch_size or drop_last beside a sampler that makes the batches
  // (LengthBucketSampler).
  DataLoader(const Dataset& dataset, const Sampler& sampler, const DataLoaderOptions& options);
  // Both must outlive the loader; a temporary would be gone before the first batch.
  DataLoader(const Dataset& dataset, const Sampler&& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const Sampler& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const Sampler&& sampler, const DataLoaderOptions& options) = delete;
  ~DataLoader();

  std::int64_t batches() const;  // in a whole pass from the sampler's present position

  // The sampler's state behind the batch at which the iterator stands: what was made ahead and not handed out does not
  // count as consumed. sampler.restore() of it, with any number of ranks, goes on behind that batch; so does a
  // checkpoint with `.loader`. All ranks must have taken equally many batches, of one batch_size. Before begin(), and
  // once the sampler was set anew (set_epoch(), restore()): the sampler's own state. Behind a pass with drop_last the
  // samples that made no whole batch are not consumed.
  SamplerState state() const;

  class Iterator {
   public:
    Batch& operator*() const;
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const;

   private:
    friend class DataLoader;
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    DataLoader* loader_;
  };
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
