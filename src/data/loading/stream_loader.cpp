#include "lockstep/data/stream_loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/data/loading/device_feed.h"
#include "src/data/loading/stack.h"
#include "src/data/samplers/check_place.h"

namespace lockstep::data {

namespace {

void check_stream(const SampleStream& stream, const StreamOptions& options) {
  if (!stream) throw InvalidArgument("StreamLoader: the function that returns samples is empty");
  if (options.batch_size < 1 || options.prefetch < 1 || options.shuffle_buffer < 0)
    throw InvalidArgument(
        "StreamLoader: batch_size {} and prefetch {} must be positive, and shuffle_buffer {} must not be negative",
        options.batch_size, options.prefetch, options.shuffle_buffer);
  check_place("StreamLoader", options.place);
}

}  // namespace

class StreamLoader::Impl {
 public:
  Impl(SampleStream stream, const StreamOptions& options)
      : options_(options), stream_(std::move(stream)), random_(options.seed, random_stream(RandomUse::kOrder, 0)) {
    if (options.device != nullptr && options.device->kind() != DeviceKind::kCpu)
      feed_ = std::make_unique<DeviceFeed>(*options.device, nullptr, 1);
    if (!options_.collate) options_.collate = [](std::span<const Sample> samples) { return stack(samples); };
    worker_ = std::thread([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
    restore_numbers();
    if (feed_ && !ready_.empty()) feed_->drop_the_rest();
  }

  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || over_; });
    if (ready_.empty()) {
      restore_numbers();
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    DeviceFeed::DeviceBatch made = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    if (!numbers_before_) numbers_before_ = sample_numbers();
    set_sample_numbers({options_.place.rank, options_.place.world_size});
    if (!feed_) return std::move(made.batch);
    feed_->start(made);
    return feed_->take(made);
  }

 private:
  void restore_numbers() {
    if (numbers_before_) set_sample_numbers(*std::exchange(numbers_before_, std::nullopt));
  }

  void work() {
    std::exception_ptr failure;
    try {
      while (make_batch()) {
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    over_ = true;
    changed_.notify_all();
  }

  // Returns whether there may be more batches.
  bool make_batch() {
    std::vector<Sample> samples;
    while (samples.size() < static_cast<std::size_t>(options_.batch_size)) {
      std::optional<Sample> sample = next_sample();
      if (!sample) break;
      samples.push_back(std::move(*sample));
    }
    if (is_stopped()) return false;
    const bool is_full = samples.size() == static_cast<std::size_t>(options_.batch_size);
    if (samples.empty() || (!is_full && options_.drop_last)) return false;
    DeviceFeed::DeviceBatch made;
    Batch batch = options_.collate(samples);
    check_on_cpu("StreamLoader: collate", batch, "StreamOptions::device");
    if (feed_)
      made = feed_->pin(batch);
    else
      made.batch = std::move(batch);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || ready_.size() < static_cast<std::size_t>(options_.prefetch); });
    if (stop_) return false;
    ready_.push_back(std::move(made));
    changed_.notify_all();
    return is_full;
  }

  bool is_stopped() {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  std::optional<Sample> next_sample() {
    const auto wanted = static_cast<std::size_t>(options_.shuffle_buffer);
    while (kept_.size() <= wanted)
      if (std::optional<Sample> sample = own_sample())
        kept_.push_back(std::move(*sample));
      else
        break;
    if (kept_.empty()) return std::nullopt;
    if (kept_.size() > 1) std::swap(kept_.front(), kept_[random_.below(static_cast<std::uint32_t>(kept_.size()))]);
    Sample sample = std::move(kept_.front());
    kept_.pop_front();
    return sample;
  }

  // The next sample of this rank: the one at its rank among the next world_size; nullopt at the end and when stopped.
  std::optional<Sample> own_sample() {
    std::optional<Sample> own;
    for (int rank = 0; rank < options_.place.world_size && !ended_; ++rank) {
      if (is_stopped()) return std::nullopt;
      std::optional<Sample> sample = stream_();
      if (!sample)
        ended_ = true;
      else if (rank == options_.place.rank)
        own = std::move(sample);
    }
    return ended_ && options_.drop_last ? std::nullopt : std::move(own);
  }

  StreamOptions options_;
  const SampleStream stream_;
  Philox random_;
  std::deque<Sample> kept_;  // of the shuffle buffer
  bool ended_ = false;
  std::optional<SampleNumbers> numbers_before_ = {};  // of the thread that calls next(), before its first batch
  std::unique_ptr<DeviceFeed> feed_;                  // null: batches stay on the CPU

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<DeviceFeed::DeviceBatch> ready_;
  std::exception_ptr failure_;
  bool stop_ = false, over_ = false;

  std::thread worker_;  // the last member: it uses the others
};

StreamLoader::StreamLoader(SampleStream stream, const StreamOptions& options) {
  check_stream(stream, options);
  impl_ = std::make_unique<Impl>(std::move(stream), options);
}
StreamLoader::~StreamLoader() = default;

std::optional<Batch> StreamLoader::next() { return impl_->next(); }

}  // namespace lockstep::data
