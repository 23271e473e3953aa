#include "lockstep/data/pipeline.h"

#include "lockstep/core/error.h"
#include "src/data/samplers/check_place.h"

namespace lockstep::data {

PipelineEpoch::PipelineEpoch(KeptDataset set, DistributedSampler sampler, const DataLoaderOptions& options)
    : set_(std::move(set)),
      sampler_(std::make_unique<DistributedSampler>(std::move(sampler))),
      loader_(std::make_unique<DataLoader>(*set_, *sampler_, options)) {}

// The loader's threads read the set and the sampler, so the loader is replaced first.
PipelineEpoch& PipelineEpoch::operator=(PipelineEpoch&& other) noexcept {
  if (this == &other) return *this;
  loader_ = std::move(other.loader_);
  sampler_ = std::move(other.sampler_);
  set_ = std::move(other.set_);
  return *this;
}

void Pipeline::check_samples(const char* call) const {
  if (batch_size_ > 0)
    throw InvalidArgument("Pipeline::{}() after batch(): it works on samples, not on batches: call it before batch()",
                          call);
}

Pipeline Pipeline::map(std::function<Sample(Sample sample)> function) const {
  check_samples("map");
  Pipeline next = *this;
  next.set_ = data::map(set_, std::move(function));
  return next;
}

Pipeline Pipeline::map(MappedDataset::Function function, std::uint64_t seed) const {
  check_samples("map");
  Pipeline next = *this;
  next.set_ = data::map(set_, std::move(function), seed);
  return next;
}

// After shuffle() the samples are in the order of epoch 0, as in tf.data with reshuffle_each_iteration = False.
KeptDataset Pipeline::in_order() const {
  if (!shuffles_ || size() == 0) return set_;
  return Subset(set_,
                DistributedSampler(size(), {}, {.shuffle = true, .seed = seed_, .shuffle_buffer = buffer_}).indices());
}

Pipeline Pipeline::take(std::int64_t count) const {
  check_samples("take");
  Pipeline next = *this;
  next.set_ = data::take(in_order(), count);
  return next;
}

Pipeline Pipeline::skip(std::int64_t count) const {
  check_samples("skip");
  Pipeline next = *this;
  next.set_ = data::skip(in_order(), count);
  return next;
}

Pipeline Pipeline::cache() const {
  Pipeline next = *this;
  next.set_ = data::cache(set_);
  return next;
}

Pipeline Pipeline::shuffle(std::int64_t buffer, std::uint64_t seed) const {
  if (buffer < 0)
    throw InvalidArgument("Pipeline::shuffle({}): the buffer must not be negative; 0 shuffles the entire set", buffer);
  if (shuffles_)
    throw InvalidArgument("Pipeline::shuffle(): the pipeline is shuffled already: remove one of the calls");
  Pipeline next = *this;
  next.shuffles_ = true;
  next.buffer_ = buffer;
  next.seed_ = seed;
  return next;
}

Pipeline Pipeline::batch(std::int64_t size, Collate collate) const {
  if (size < 1) throw InvalidArgument("Pipeline::batch({}): at least one sample is needed", size);
  if (batch_size_ > 0)
    throw InvalidArgument("Pipeline::batch({}): the pipeline has batches of {} already: remove one of the calls", size,
                          batch_size_);
  Pipeline next = *this;
  next.batch_size_ = size;
  next.collate_ = std::move(collate);
  return next;
}

Pipeline Pipeline::batch(std::int64_t size, const BatchOptions& options) const {
  Pipeline next = batch(size, options.collate);
  next.drops_ = options.drop_remainder;
  return next;
}

Pipeline Pipeline::repeat(std::int64_t count) const {
  if (count < 0) throw InvalidArgument("Pipeline::repeat({}): expected a number of epochs, or 0 for no end", count);
  if (repeats_ != 1)
    throw InvalidArgument("Pipeline::repeat({}): the pipeline repeats {} already: remove one of the calls", count,
                          repeats_ == 0 ? "without end" : fmt::format("{} times", repeats_));
  Pipeline next = *this;
  next.repeats_ = count;
  return next;
}

Pipeline Pipeline::prefetch(int batches, int num_workers) const {
  if (batches < 1 || num_workers < 1)
    throw InvalidArgument("Pipeline::prefetch({}, {}): batches and threads must be positive", batches, num_workers);
  Pipeline next = *this;
  next.prefetch_ = batches;
  next.workers_ = num_workers;
  return next;
}

std::int64_t Pipeline::batches() const {
  if (batch_size_ == 0) return 0;
  return drops_ ? size() / batch_size_ : (size() + batch_size_ - 1) / batch_size_;
}

PipelineEpoch Pipeline::epoch(std::int64_t epoch, const EpochOptions& options) const {
  const Place& place = options.place;
  check_place("Pipeline", place);
  if (batch_size_ == 0) throw InvalidArgument("Pipeline::epoch(): the pipeline has no batches: call batch() first");
  if (batch_size_ % place.world_size != 0)
    throw InvalidArgument(
        "Pipeline: rank {}: a batch of {} samples cannot be divided evenly among {} ranks: choose a multiple of {}",
        place.rank, batch_size_, place.world_size, place.world_size);
  if (size() == 0)
    throw InvalidArgument("Pipeline: rank {}: the data set is empty: at least one sample is needed", place.rank);
  const bool drops = drops_ || options.remainder == Remainder::kDrop;
  if (drops && batch_size_ > size())
    throw InvalidArgument("Pipeline: rank {}: a batch of {} samples is larger than the set, which has {}", place.rank,
                          batch_size_, size());
  const std::int64_t batches = drops ? size() / batch_size_ : (size() + batch_size_ - 1) / batch_size_;
  if (options.first_batch < 0 || options.first_batch >= batches)
    throw InvalidArgument("Pipeline: rank {}: first_batch is {}, but an epoch has batches 0 to {}", place.rank,
                          options.first_batch, batches - 1);
  DistributedSampler sampler(size(), place, {shuffles_, seed_, drops ? Remainder::kDrop : options.remainder, buffer_});
  sampler.set_epoch(epoch);
  sampler.advance(options.first_batch * batch_size_);
  return {set_,
          std::move(sampler),
          {.batch_size = batch_size_ / place.world_size,
           .device = options.device,
           .drop_last = drops,
           .prefetch = prefetch_,
           .num_workers = workers_,
           .collate = collate_}};
}

}  // namespace lockstep::data
