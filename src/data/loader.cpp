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

namespace lockstep::data {

class DataLoader::Impl {
 public:
  Impl(const Dataset& dataset, const DistributedSampler& sampler, const DataLoaderOptions& options)
      : dataset_(dataset), sampler_(sampler), options_(options), device_(options.device == nullptr ? cpu_device() : *options.device) {
    if (options.batch_size < 1 || options.prefetch < 1)
      throw InvalidArgument("DataLoader: batch_size {} and prefetch {} must be positive", options.batch_size, options.prefetch);
    if (options.drop_last && sampler.size() < options.batch_size)
      throw InvalidArgument("DataLoader: a batch of {} is larger than the {} samples of rank {}: nothing is left to train on",
                            options.batch_size, sampler.size(), sampler.place().rank);
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
    ready_.clear();
    failure_ = nullptr;
    stop_ = false;
    if (batches_ > 0) thread_ = std::thread([this] { produce(); });
    advance();
  }

  // Waits for the next batch; rethrows what the data set threw.
  void advance() {
    current_.reset();
    if (taken_ == batches_) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    if (ready_.empty()) {
      taken_ = batches_;
      std::rethrow_exception(failure_);
    }
    current_ = std::move(ready_.front());
    ready_.pop_front();
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
  }

  void produce() {
    try {
      for (std::int64_t b = 0; b < batches_; ++b) {
        Batch batch = make(b);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || ready_.size() < static_cast<std::size_t>(options_.prefetch); });
        if (stop_) return;
        ready_.push_back(std::move(batch));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  Batch make(std::int64_t number) const {
    const std::int64_t begin = number * options_.batch_size;
    const std::int64_t count = std::min(options_.batch_size, static_cast<std::int64_t>(indices_.size()) - begin);
    std::vector<std::int64_t> extents = {count};
    const Shape sample = dataset_.sample_shape();
    extents.insert(extents.end(), sample.extents().begin(), sample.extents().end());
    const Tensor inputs = Tensor::empty(Shape(std::span<const std::int64_t>(extents)));
    const Tensor targets = Tensor::empty({count}, DType::kInt64);
    const auto values = inputs.span<float>();
    const auto labels = targets.span<std::int64_t>();
    const auto size = static_cast<std::size_t>(sample.count());
    for (std::int64_t i = 0; i < count; ++i)
      dataset_.read(indices_[static_cast<std::size_t>(begin + i)], epoch_, values.subspan(static_cast<std::size_t>(i) * size, size),
                    labels[static_cast<std::size_t>(i)]);
    Batch batch{inputs.to(device_), targets.to(device_)};
    device_.default_stream().synchronize();  // the host copies go out of scope
    return batch;
  }

  const Dataset& dataset_;
  const DistributedSampler& sampler_;
  const DataLoaderOptions options_;
  Device& device_;
  std::vector<std::int64_t> indices_;  // of the present pass
  std::int64_t epoch_ = 0, batches_ = 0, taken_ = 0;
  std::optional<Batch> current_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Batch> ready_;
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
