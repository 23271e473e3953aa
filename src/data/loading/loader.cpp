#include "lockstep/data/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/core/base/batch_position.h"
#include "src/data/loading/batch_maker.h"
#include "src/data/loading/device_feed.h"

namespace lockstep::data {

namespace {

void check_loader(const Dataset& dataset, const Sampler& sampler, const DataLoaderOptions& options) {
  if (options.batch_size < 1 || options.prefetch < 1 || options.num_workers < 1)
    throw InvalidArgument("DataLoader: batch_size {}, prefetch {} and num_workers {} must be positive",
                          options.batch_size, options.prefetch, options.num_workers);
  if (sampler.set_size() > dataset.size())
    throw InvalidArgument(
        "DataLoader: rank {}: the sampler is for {} samples, but the data set has {}: make it with this set's size(), "
        "or with fewer for a "
        "subset",
        sampler.place().rank, sampler.set_size(), dataset.size());
  if (sampler.makes_batches() && (options.batch_size != 1 || options.drop_last))
    throw InvalidArgument(
        "DataLoader: rank {}: batch_size {} and drop_last {} do not go with a sampler that makes the batches: leave "
        "both out, and give the "
        "sampler the size",
        sampler.place().rank, options.batch_size, options.drop_last);
  if (options.drop_last && sampler.size() < options.batch_size)
    throw InvalidArgument(
        "DataLoader: a batch of {} is larger than the {} samples of rank {}, so drop_last leaves no batch: use a "
        "smaller batch",
        options.batch_size, sampler.size(), sampler.place().rank);
}

// A thread's position in its data.
struct ReadPosition {
  SampleNumbers numbers;
  BatchPosition batch;
};

// The positions that this thread had before each of its unfinished passes, in the order in which these began.
thread_local std::vector<std::weak_ptr<ReadPosition>> before_passes;

std::shared_ptr<ReadPosition> keep_position() {
  auto before = std::make_shared<ReadPosition>(ReadPosition{sample_numbers(), this_threads_batch});
  before_passes.push_back(before);
  return before;
}

// Called at the end of a pass. If a later pass is still running, that one restores the position at its own end.
void restore_position(const std::shared_ptr<ReadPosition>& before, std::uint64_t number) {
  auto& passes = before_passes;
  std::erase_if(passes, [](const auto& pass) { return pass.expired(); });
  const auto own = std::find_if(passes.begin(), passes.end(), [&](const auto& pass) { return pass.lock() == before; });
  if (own == passes.end() || own + 1 == passes.end()) {
    set_sample_numbers(before->numbers);
    if (this_threads_batch.pass == number) this_threads_batch = before->batch;  // another pass may have changed it
  } else {
    *(own + 1)->lock() = *before;
  }
  if (own != passes.end()) passes.erase(own);
}

std::uint64_t next_pass() {
  static std::atomic<std::uint64_t> passes{0};
  return ++passes;
}

}  // namespace

// Workers claim batch numbers in order and make the batches in parallel. Each holds its batch until all earlier ones
// have been handed over and there is room, so batches and exceptions arrive in the order of a single worker. At most
// num_workers batches lie between `queued_` and `claimed_`.
class DataLoader::Impl {
 public:
  Impl(const Dataset& dataset, const Sampler& sampler, const DataLoaderOptions& options)
      : sampler_(sampler), options_(options), maker_(dataset, options.collate) {
    check_loader(dataset, sampler, options);
    if (options.device == nullptr || options.device->kind() == DeviceKind::kCpu) return;
    const ImageSource* const images = maker_.in_place() ? dataset.images() : nullptr;
    feed_ = std::make_unique<DeviceFeed>(*options.device, images, static_cast<std::size_t>(options.num_workers) + 1);
  }

  ~Impl() { stop(); }

  std::int64_t batches() const {
    const std::int64_t left = sampler_.remaining();  // batches when the sampler makes them; batch_size is then 1
    return left / options_.batch_size + (!options_.drop_last && left % options_.batch_size != 0 ? 1 : 0);
  }

  // After k batches of b samples on each of n ranks, the first k x b x n positions of the pass are consumed. A smaller
  // batch is the last one and consumes the rest of the pass.
  SamplerState state() const {
    if (!begun_ || sampler_.jumps_ != jumps_) return sampler_.state();
    const std::int64_t whole = sampler_.whole_size(), end = sampler_.end_of_pass(first_, whole);
    if (at_end() && !options_.drop_last && handed_out_ == batches_) return sampler_.state_at(end);
    const std::int64_t step = std::min(options_.batch_size, whole) * sampler_.place().world_size;
    return sampler_.state_at(std::min(end, first_ + handed_out_ * step));
  }

  void begin() {
    stop();
    sampler_.begin_pass();
    order_ = sampler_.order();
    if (!sampler_.makes_batches()) cut_batches();
    batches_ = static_cast<std::int64_t>(order_.batch_ends.size());
    epoch_ = sampler_.epoch();
    first_ = sampler_.state_.consumed;
    jumps_ = sampler_.jumps_;
    begun_ = true;
    position_before_ = keep_position();
    pass_ = next_pass();
    taken_ = handed_out_ = claimed_ = queued_ = 0;
    failure_ = nullptr;
    stop_ = false;
    if (allocates_ahead())
      for (std::int64_t b = 0; b < std::min<std::int64_t>(options_.prefetch, batches_); ++b)
        allocated_.push_back(allocate_batch(b));
    for (std::int64_t worker = 0; worker < std::min<std::int64_t>(options_.num_workers, batches_); ++worker)
      workers_.emplace_back([this] { work(); });
    advance();
  }

  // Blocks until the next batch is complete; rethrows the data set's exception. When the pass has ended, for either
  // reason, no thread reads the data set.
  void advance() {
    current_.reset();
    if (taken_ == batches_) {
      sampler_.end_pass();
      return stop();
    }
    const std::int64_t next = taken_ + options_.prefetch;
    std::optional<DeviceFeed::DeviceBatch> batch;
    if (allocates_ahead() && next < batches_) batch = allocate_batch(next);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    if (ready_.empty()) {
      taken_ = batches_;
      const std::exception_ptr failure = failure_;
      lock.unlock();
      stop();
      std::rethrow_exception(failure);
    }
    if (feed_ && !maker_.in_place())
      for (DeviceFeed::DeviceBatch& each : ready_)
        if (!each.copied) feed_->start(each);
    current_ = feed_ ? feed_->take(ready_.front()) : std::move(ready_.front().batch);
    ready_.pop_front();
    if (batch) allocated_.push_back(std::move(*batch));
    ++taken_;
    ++handed_out_;
    lock.unlock();
    // The sampler gives rank r the samples r, r + n, r + 2n, ... of all ranks' samples of a step.
    set_sample_numbers({sampler_.place().rank, sampler_.place().world_size});
    // Ranks are compared only on batches that they take together; a rank may read other batches alone.
    if (sampler_.place().world_size > 1)
      this_threads_batch = {pass_, static_cast<std::uint32_t>(handed_out_), sampler_.place().world_size};
    changed_.notify_all();
  }

  bool at_end() const { return !current_; }
  Batch& current() {
    LOCKSTEP_CHECK(current_.has_value(), "the iterator was dereferenced at the end of the pass");
    return *current_;
  }

 private:
  // A worker's batch before its turn. One of the two is set.
  struct Made {
    std::vector<Tensor> stacked;  // in the feed's pinned memory
    DeviceFeed::DeviceBatch whole;
  };

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    if (position_before_) restore_position(std::exchange(position_before_, nullptr), pass_);
    if (feed_ && !ready_.empty()) feed_->drop_the_rest();
    ready_.clear();
    allocated_.clear();
  }

  void work() {
    while (const std::optional<std::int64_t> number = claim()) {
      Made made;
      std::exception_ptr failure;
      try {
        made = make(*number);
      } catch (...) {
        failure = std::current_exception();
      }
      if (!hand_over(*number, made, failure)) return;
    }
  }

  std::optional<std::int64_t> claim() {
    const std::lock_guard lock(mutex_);
    if (stop_ || failure_ || claimed_ == batches_) return std::nullopt;
    return claimed_++;
  }

  // Blocks until it is the turn of batch `number`. Returns whether there may be more batches to make.
  bool hand_over(std::int64_t number, Made& made, std::exception_ptr failure) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || failure_ || (queued_ == number && (failure || has_room())); });
    if (stop_ || failure_) return false;
    try {
      if (!failure) queue(number, made);
    } catch (...) {
      failure = std::current_exception();
    }
    failure_ = failure;
    ++queued_;
    lock.unlock();
    changed_.notify_all();
    return !failure;
  }

  void queue(std::int64_t number, Made& made) {
    if (allocates_ahead()) {
      made.whole = std::move(allocated_.front());
      allocated_.pop_front();
      feed_->copy(number, made.stacked, made.whole);  // does not block
    }
    ready_.push_back(std::move(made.whole));
  }

  bool allocates_ahead() const { return feed_ && maker_.in_place(); }
  bool has_room() const {
    return allocates_ahead() ? !allocated_.empty() : ready_.size() < static_cast<std::size_t>(options_.prefetch);
  }

  void cut_batches() {
    const auto samples = static_cast<std::int64_t>(order_.indices.size());
    for (std::int64_t begin = 0, size = options_.batch_size; begin < samples; begin += size) {
      size = std::min(size, samples - begin);
      if (size == options_.batch_size || !options_.drop_last) order_.batch_ends.push_back(begin + size);
    }
  }

  std::span<const std::int64_t> indices_of(std::int64_t number) const {
    const auto at = static_cast<std::size_t>(number);
    const auto begin = at == 0 ? 0 : static_cast<std::size_t>(order_.batch_ends[at - 1]);
    return std::span(order_.indices).subspan(begin, static_cast<std::size_t>(order_.batch_ends[at]) - begin);
  }

  DeviceFeed::DeviceBatch allocate_batch(std::int64_t number) {
    return feed_->allocate(maker_.spec(), static_cast<std::int64_t>(indices_of(number).size()));
  }

  Made make(std::int64_t number) {
    const std::span<const std::int64_t> indices = indices_of(number);
    Made made;
    if (!feed_) {
      made.whole.batch = maker_.make(indices, epoch_, stop_);
    } else if (!maker_.in_place()) {
      made.whole = feed_->pin(maker_.make(indices, epoch_, stop_));
    } else {
      const auto rows = static_cast<std::int64_t>(indices.size());
      made.stacked = feed_->host_batch(number, maker_.spec(), rows);
      if (feed_->images() != nullptr)
        maker_.fill_images(indices, epoch_, PackedImages(feed_->image_shape(rows), made.stacked[0].buffer().data()),
                           made.stacked[1], stop_);
      else
        maker_.fill(indices, epoch_, made.stacked, stop_);
    }
    return made;
  }

  const Sampler& sampler_;
  const DataLoaderOptions options_;
  const BatchMaker maker_;
  std::unique_ptr<DeviceFeed> feed_;  // null: batches stay on the CPU
  SampleOrder order_;                 // of the present pass, cut into batches
  std::int64_t epoch_ = 0, batches_ = 0, taken_ = 0;
  bool begun_ = false;
  std::int64_t first_ = 0;       // position at which the pass began, over all ranks
  std::int64_t handed_out_ = 0;  // batches that the iterator has reached
  std::uint64_t jumps_ = 0;      // the sampler's count when the pass began
  std::optional<Batch> current_;
  std::shared_ptr<ReadPosition> position_before_;  // from before the pass in progress
  std::uint64_t pass_ = 0;                         // number of the pass
  std::vector<std::thread> workers_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::int64_t claimed_ = 0, queued_ = 0;          // numbers of batches begun and handed over
  std::deque<DeviceFeed::DeviceBatch> ready_;      // without events on the CPU
  std::deque<DeviceFeed::DeviceBatch> allocated_;  // on a GPU: memory for the following batches
  std::exception_ptr failure_;
  std::atomic<bool> stop_ = false;  // set under the mutex; workers read it without the mutex while they make a batch
};

DataLoader::DataLoader(const Dataset& dataset, const Sampler& sampler, const DataLoaderOptions& options)
    : impl_(std::make_unique<Impl>(dataset, sampler, options)) {}
DataLoader::~DataLoader() = default;

std::int64_t DataLoader::batches() const { return impl_->batches(); }
SamplerState DataLoader::state() const { return impl_->state(); }

DataLoader::Iterator DataLoader::begin() {
  impl_->begin();
  return Iterator(this);
}

Batch& DataLoader::Iterator::operator*() const { return loader_->impl_->current(); }
DataLoader::Iterator& DataLoader::Iterator::operator++() {
  loader_->impl_->advance();
  return *this;
}
bool DataLoader::Iterator::operator==(std::default_sentinel_t) const { return loader_->impl_->at_end(); }

}  // namespace lockstep::data
