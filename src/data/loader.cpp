#include "lockstep/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "src/data/device_feed.h"
#include "src/data/packed_images.h"

namespace lockstep::data {

class DataLoader::Impl {
 public:
  Impl(const Dataset& dataset, const DistributedSampler& sampler, const DataLoaderOptions& options)
      : dataset_(dataset), sampler_(sampler), options_(options) {
    if (options.batch_size < 1 || options.prefetch < 1)
      throw InvalidArgument("DataLoader: batch_size {} and prefetch {} must be positive", options.batch_size, options.prefetch);
    if (sampler.set_size() > dataset.size())
      throw InvalidArgument(
          "DataLoader: rank {}: the sampler is for {} samples, the data set has {}: make it with this set's size(), or with fewer for a "
          "subset",
          sampler.place().rank, sampler.set_size(), dataset.size());
    if (options.drop_last && sampler.size() < options.batch_size)
      throw InvalidArgument("DataLoader: a batch of {} is larger than the {} samples of rank {}: nothing is left to train on",
                            options.batch_size, sampler.size(), sampler.place().rank);
    if (options.device != nullptr && options.device->kind() != DeviceKind::kCpu)
      feed_ = std::make_unique<DeviceFeed>(*options.device, dataset.images());
  }

  ~Impl() { stop(); }

  std::int64_t batches() const {
    const auto samples = static_cast<std::int64_t>(sampler_.indices().size());
    return (options_.drop_last ? samples : samples + options_.batch_size - 1) / options_.batch_size;
  }

  void begin() {
    stop();
    indices_ = sampler_.indices();
    epoch_ = sampler_.epoch();
    batches_ = batches();
    taken_ = 0;
    failure_ = nullptr;
    stop_ = false;
    if (feed_)
      for (std::int64_t b = 0; b < std::min<std::int64_t>(options_.prefetch, batches_); ++b) berths_.push_back(berth_of(b));
    if (batches_ > 0) thread_ = std::thread([this] { produce(); });
    advance();
  }

  // Waits for the next batch; rethrows what the data set threw.
  void advance() {
    current_.reset();
    if (taken_ == batches_) return;
    const std::int64_t next = taken_ + options_.prefetch;
    std::optional<DeviceFeed::Berth> berth;
    if (feed_ && next < batches_) berth = berth_of(next);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    if (ready_.empty()) {
      taken_ = batches_;
      std::rethrow_exception(failure_);
    }
    current_ = feed_ ? feed_->take(ready_.front()) : std::move(ready_.front().batch);
    ready_.pop_front();
    if (berth) berths_.push_back(std::move(*berth));
    ++taken_;
    lock.unlock();
    changed_.notify_all();
  }

  bool at_end() const { return !current_; }
  Batch& current() {
    LOCKSTEP_CHECK(current_.has_value(), "a batch was read past the end");
    return *current_;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    if (feed_ && !ready_.empty()) feed_->drop_the_rest();
    ready_.clear();
    berths_.clear();
  }

  void produce() {
    try {
      for (std::int64_t b = 0; b < batches_; ++b) {
        const Batch batch = make(b);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || has_room(); });
        if (stop_) return;
        DeviceFeed::Berth berth{.batch = batch, .images = {}, .writable = {}, .copied = {}};
        if (feed_) {
          berth = std::move(berths_.front());
          berths_.pop_front();
          feed_->copy(batch, berth);  // queues, and does not wait
        }
        ready_.push_back(std::move(berth));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  bool has_room() const { return feed_ ? !berths_.empty() : ready_.size() < static_cast<std::size_t>(options_.prefetch); }

  std::int64_t count_of(std::int64_t number) const {
    return std::min(options_.batch_size, static_cast<std::int64_t>(indices_.size()) - number * options_.batch_size);
  }

  Shape shape_of(std::int64_t number) const {
    std::vector<std::int64_t> extents = {count_of(number)};
    const Shape sample = dataset_.sample_shape();
    extents.insert(extents.end(), sample.extents().begin(), sample.extents().end());
    return Shape(std::span<const std::int64_t>(extents));
  }

  DeviceFeed::Berth berth_of(std::int64_t number) { return feed_->allocate(shape_of(number), count_of(number)); }

  // In host memory.
  Batch make(std::int64_t number) {
    const std::int64_t begin = number * options_.batch_size, count = count_of(number);
    const Shape shape = shape_of(number);
    Batch batch = feed_ ? feed_->host_batch(shape, count) : Batch{Tensor::empty(shape), Tensor::empty({count}, DType::kInt64)};
    const auto labels = batch.targets.span<std::int64_t>();
    if (feed_ && feed_->images() != nullptr) {
      const PackedImages packed(feed_->image_shape(count), batch.inputs.buffer().data());
      for (std::int64_t i = 0; i < count; ++i)
        feed_->images()->read_image(indices_[static_cast<std::size_t>(begin + i)], epoch_, packed.planes_of(i), packed.each()[i],
                                    labels[static_cast<std::size_t>(i)]);
      return batch;
    }
    const auto values = batch.inputs.span<float>();
    const auto size = static_cast<std::size_t>(dataset_.sample_shape().count());
    for (std::int64_t i = 0; i < count; ++i)
      dataset_.read(indices_[static_cast<std::size_t>(begin + i)], epoch_, values.subspan(static_cast<std::size_t>(i) * size, size),
                    labels[static_cast<std::size_t>(i)]);
    return batch;
  }

  const Dataset& dataset_;
  const DistributedSampler& sampler_;
  const DataLoaderOptions options_;
  std::unique_ptr<DeviceFeed> feed_;   // null: batches stay on the CPU
  std::vector<std::int64_t> indices_;  // of the present pass
  std::int64_t epoch_ = 0, batches_ = 0, taken_ = 0;
  std::optional<Batch> current_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<DeviceFeed::Berth> ready_;   // on the CPU without marks
  std::deque<DeviceFeed::Berth> berths_;  // on a GPU: memory for the batches after these
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

DataLoader::DataLoader(const Dataset& dataset, const DistributedSampler& sampler, const DataLoaderOptions& options)
    : impl_(std::make_unique<Impl>(dataset, sampler, options)) {}
DataLoader::~DataLoader() = default;

std::int64_t DataLoader::batches() const { return impl_->batches(); }

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
