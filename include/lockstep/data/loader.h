// DataLoader: batches of this rank's samples, made ahead on a thread.
//
// For a GPU the thread fills pinned memory, and copies it on a stream of its own while the GPU computes. The iterator waits until a
// batch is on its way; that it has come is left to the GPU's default stream, which goes on behind the copy. So the host may be some
// prefetch + 2 steps ahead of the GPU, and then waits for it.
//
//   for (auto& [inputs, targets] : DataLoader(train, sampler, {.batch_size = 128})) ...
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;  // of this rank
  Device* device = nullptr;     // where batches go; null: the CPU
  bool drop_last = false;       // leave out the last, smaller batch
  int prefetch = 2;             // batches made ahead; on a GPU its memory holds that many more
};

// One pass over the sampler's indices from its present position. begin() starts the thread; destroying the loader, or
// begin() again, ends it (and waits for copies under way). Iterating, begin() and the destructor belong to the thread that computes. An
// exception of the data set is rethrown by the iterator.
class DataLoader {
 public:
  // Throws InvalidArgument when the sampler was made for more samples than the set has (for fewer: a subset, the first ones), or when the
  // batch is larger than what the sampler holds and drop_last leaves nothing.
  DataLoader(const Dataset& dataset, const DistributedSampler& sampler, const DataLoaderOptions& options);
  // Both must outlive the loader; a temporary would be gone before the first batch.
  DataLoader(const Dataset& dataset, const DistributedSampler&& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const DistributedSampler& sampler, const DataLoaderOptions& options) = delete;
  DataLoader(const Dataset&& dataset, const DistributedSampler&& sampler, const DataLoaderOptions& options) = delete;
  ~DataLoader();

  std::int64_t batches() const;  // in a whole pass from the present position

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
