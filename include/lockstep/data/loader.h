// DataLoader: this rank's samples in batches, prepared in advance by threads.
//
// For a GPU the threads fill pinned memory, which is copied on a separate stream while the GPU computes. The iterator
// blocks until a batch's copy is queued, and the GPU's default stream waits for the copy itself. The host can therefore
// be up to prefetch + 2 steps ahead of the GPU before it blocks.
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
  std::int64_t batch_size = 1;  // samples per batch on this rank
  Device* device = nullptr;     // where batches are placed; null: the CPU
  bool drop_last = false;       // skip the last, smaller batch
  int prefetch = 2;             // batches prepared in advance; a GPU holds that many more in its memory
  int num_workers = 1;          // threads, each of which makes entire batches; order and values do not depend on it
  Collate collate = {};  // makes a batch from a list of samples; empty: stack(), or read() with an element_spec()
};

// One pass over this rank's remaining samples from the sampler's present position. begin() starts the threads. The
// destructor, or another begin(), stops them; it blocks for copies in progress and for the sample that each thread is
// reading. Use the iterator, begin() and the destructor on the computing thread. While the pass is at a batch, that
// thread's sample_numbers() (tensor/random.h) are the batch rows' positions among all ranks' samples, so that dropout
// masks do not depend on the number of ranks. The end of the pass restores the previous numbers.
//
// The iterator rethrows an exception of the data set or of `collate` after the batches before it. It keeps its class
// when that is a lockstep::Error (else it becomes Error), its text begins with the sample's index and epoch, and the
// original exception is nested in it. The exception ends the pass. After a pass has ended, by its last batch or by an
// exception, no thread reads the data set.
class DataLoader {
 public:
  // Throws InvalidArgument when the sampler was made for more samples than the set has (with fewer, it reads a subset:
  // the first ones), when drop_last leaves no batch, when batch_size, prefetch or num_workers is below 1, or when
  // batch_size or drop_last is set with a sampler that makes the batches (LengthBucketSampler).
  DataLoader(const Dataset& dataset, const Sampler& sampler, const DataLoaderOptions& options);
  // Both must outlive the loader; temporaries would not.
  DataLoader(const Dataset& dataset, const Sampler&& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const Sampler& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const Sampler&& sampler, const DataLoaderOptions& options) = delete;
  ~DataLoader();

  std::int64_t batches() const;  // full pass from the sampler's present position

  // Returns the sampler's state after the iterator's current batch; batches prepared in advance do not count as
  // consumed. sampler.restore(), with any number of ranks, continues after that batch, and so does a checkpoint with
  // `.loader`. All ranks must have taken equally many batches of the same batch_size. Before begin(), and after
  // set_epoch() or restore() of the sampler, returns the sampler's own state. After a pass with drop_last, the samples
  // that did not fill a batch are not consumed.
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
