// StreamLoader: batches of samples that come one after the other and have no numbers, from a socket, a generator or
// files without an index: PyTorch's IterableDataset.
//
//   ls::data::StreamLoader loader([&]() -> std::optional<ls::data::Sample> { return reader.next_game(); },
//                                 {.batch_size = 64});
//   while (const auto batch = loader.next()) ...
//
// A data set with numbered samples has more: data/loader.h shares it among ranks and resumes it in the middle, and
// data/reader.h repeats it without end. A stream has no state that a checkpoint could keep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lockstep/data/collate.h"
#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Returns the next sample, nullopt at the end of the stream. One thread calls it.
using SampleStream = std::function<std::optional<Sample>()>;

struct StreamOptions {
  std::int64_t batch_size = 1;  // samples per batch on this rank
  // This rank's share: of every world_size samples it keeps the one at its rank and drops the others, so that ranks
  // with the same stream see different samples. Leave it if each rank has a stream of its own.
  Place place = {};
  Device* device = nullptr;  // where batches are placed; null: the CPU
  bool drop_last = false;    // skip the last, smaller batch, and the last samples that not every rank would get
  int prefetch = 2;          // batches prepared in advance
  // Samples kept to draw the next one from, so that neighbours in the stream are apart in training; 0: as they come.
  std::int64_t shuffle_buffer = 0;
  std::uint64_t seed = 0;  // of the drawing
  Collate collate = {};    // empty: stack(). Returns CPU tensors, also with `device`
};

// Use it from one thread. The destructor blocks until the call of the stream or of `collate` in progress has returned,
// and none follows it.
class StreamLoader {
 public:
  // Starts the thread that reads. Throws InvalidArgument for an empty stream, a batch_size or prefetch below 1 and a
  // negative shuffle_buffer.
  explicit StreamLoader(SampleStream stream, const StreamOptions& options = {});
  ~StreamLoader();
  StreamLoader(const StreamLoader&) = delete;
  StreamLoader& operator=(const StreamLoader&) = delete;

  // Blocks until the next batch is complete; nullopt after the last one. An exception of the stream or of `collate` is
  // rethrown after the batches before it, and again by every later call. Ranks whose streams end at different times
  // need join() (ddp/ddp.h), or drop_last with `place`. Until the end, or the destructor, the calling thread's
  // sample_numbers() are those of `place`, as with DataLoader.
  std::optional<Batch> next();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
