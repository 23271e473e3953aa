// Reader: the batches of a pipeline one after the other, over as many epochs as repeat() says, for loops of steps
// instead of epochs.
//
//   data::Reader reader(data::Pipeline(train).shuffle().repeat().batch(128));   // endless, as in tf.data
//   while (const auto batch = reader.next()) strategy->step(batch->inputs(), batch->targets());
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/data/pipeline.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct ReaderOptions {
  Place place = {};          // this rank's place among the ranks that share the samples
  Device* device = nullptr;  // where batches are placed; null: the CPU
  // kDrop: each epoch ends with its last full batch, as with tf.data's drop_remainder. kPad, kExact: see EpochOptions.
  Remainder remainder = Remainder::kDrop;
};

// Use it from one thread.
class Reader {
 public:
  // The pipeline needs batch(). Throws what Pipeline::epoch() throws.
  explicit Reader(Pipeline pipeline, const ReaderOptions& options = {});
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  // Blocks until the next batch is read; nullopt after the last epoch. Throws what the data set throws; then the same
  // batch is read again by the next call.
  std::optional<Batch> next();
  // The next call returns batch number `batch`, counted from 0 over all epochs, and earlier ones are not read: a
  // resumed run continues with seek(steps done). Throws InvalidArgument for a negative number, and for one after the
  // last epoch.
  void seek(std::int64_t batch);
  std::int64_t position() const;           // the number of the next batch
  std::int64_t batches_per_epoch() const;  // on this rank

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
