#include "tests/support/recording_device.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <tuple>
#include <type_traits>

#include "lockstep/core/error.h"
#include "src/core/stream_allocator.h"

namespace lockstep::testing {

namespace {

// What was queued, by all streams of a device.
class Log {
 public:
  void add(int stream, const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back("stream " + std::to_string(stream) + ": " + what);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class ThreadStream : public Stream, public HostStream {
 public:
  ThreadStream(int number, Log& log) : number_(number), log_(log), thread_([this] { serve(); }) {}
  ~ThreadStream() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void push(std::string what, std::function<void()> work) override {
    if (!what.empty()) log_.add(number_, what);
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++pushed_;
    changed_.notify_all();
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&, until = pushed_] { return done_ >= until; });
  }
  void* native() const override { return const_cast<HostStream*>(static_cast<const HostStream*>(this)); }

 private:
  // Finishes what is queued before it ends, as destroying a CUDA stream does.
  void serve() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
      work = nullptr;
      const std::lock_guard lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  const int number_;
  Log& log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

// A mark that work sets and others wait for.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return set_;
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return set_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;
};

ThreadStream& as_thread(Stream& stream) { return static_cast<ThreadStream&>(stream); }

// As CUDA's: an event that was never recorded is done; waiting refers to the record made last.
class FlagEvent : public Event {
 public:
  void record(Stream& stream) override {
    flag_ = std::make_shared<Flag>();
    as_thread(stream).push("record", [flag = flag_] { flag->set(); });
  }
  void order_before(Stream& later) override {
    if (flag_) as_thread(later).push("wait", [flag = flag_] { flag->wait(); });
  }
  bool done() const override { return !flag_ || flag_->is_set(); }
  void synchronize() override {
    if (flag_) flag_->wait();
  }

 private:
  std::shared_ptr<Flag> flag_;
};

// An argument as it must be kept until the stream comes to it: what it refers to on the host may be gone by then.
template <typename T>
struct Kept {
  explicit Kept(T value) : value(value) {}
  T get() { return value; }
  T value;
};
template <typename T>
struct Kept<const T&> {
  explicit Kept(const T& value) : value(value) {}
  const T& get() { return value; }
  T value;
};
template <>
struct Kept<Stream&> {
  explicit Kept(Stream&) {}
  Stream& get() { return cpu_device().default_stream(); }
};
template <typename T>
struct Kept<std::span<const T>> {
  explicit Kept(std::span<const T> value) : values(value.begin(), value.end()) {}
  std::span<const T> get() { return values; }
  std::vector<T> values;
};

template <auto entry>
struct Queued;
template <typename... Arguments, void (*KernelTable::*entry)(Arguments...)>
struct Queued<entry> {
  static void call(Arguments... arguments) {
    Stream& stream = std::get<sizeof...(Arguments) - 1>(std::tie(arguments...));
    as_thread(stream).push(name, [kept = std::make_shared<std::tuple<Kept<Arguments>...>>(Kept<Arguments>(arguments)...)] {
      std::apply([](auto&... each) { (reference_kernels().*entry)(each.get()...); }, *kept);
    });
  }
  static inline const char* name = "";
};

template <auto entry>
void queue(KernelTable& table, const char* name) {
  Queued<entry>::name = name;
  table.*entry = Queued<entry>::call;
}

KernelTable queued_kernels() {
  KernelTable table{};
#define LOCKSTEP_QUEUE(entry) queue<&KernelTable::entry>(table, #entry);
  LOCKSTEP_QUEUE(fill)
  LOCKSTEP_QUEUE(add)
  LOCKSTEP_QUEUE(accumulate)
  LOCKSTEP_QUEUE(scale)
  LOCKSTEP_QUEUE(relu)
  LOCKSTEP_QUEUE(relu_backward)
  LOCKSTEP_QUEUE(bias)
  LOCKSTEP_QUEUE(bias_backward)
  LOCKSTEP_QUEUE(conv2d)
  LOCKSTEP_QUEUE(conv2d_backward_data)
  LOCKSTEP_QUEUE(conv2d_backward_weights)
  LOCKSTEP_QUEUE(max_pool2d)
  LOCKSTEP_QUEUE(max_pool2d_backward)
  LOCKSTEP_QUEUE(lrn)
  LOCKSTEP_QUEUE(lrn_backward)
  LOCKSTEP_QUEUE(linear)
  LOCKSTEP_QUEUE(linear_backward_data)
  LOCKSTEP_QUEUE(linear_backward_weights)
  LOCKSTEP_QUEUE(softmax_cross_entropy)
  LOCKSTEP_QUEUE(softmax_cross_entropy_backward)
  LOCKSTEP_QUEUE(l2_loss)
  LOCKSTEP_QUEUE(l2_loss_backward)
  LOCKSTEP_QUEUE(sgd_step)
#undef LOCKSTEP_QUEUE
  return table;
}

// Blocks that were given back come free when the stream gets there.
class HostPool : public MemoryPool {
 public:
  HostPool(ThreadStream& stream, std::size_t size) : stream_(stream), size_(size) {}
  ~HostPool() override {
    for (auto& [bytes, block] : cached_) std::free(block);
  }
  std::byte* take(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (const auto cached = cached_.find(bytes); cached != cached_.end()) {
      std::byte* const block = cached->second;
      cached_.erase(cached);
      return block;
    }
    if (bytes > size_ - held_) return nullptr;
    held_ += bytes;
    return static_cast<std::byte*>(std::aligned_alloc(512, bytes));
  }
  void give_back(std::byte* block, std::size_t bytes) noexcept override {
    stream_.push("", [this, block, bytes] {
      const std::lock_guard lock(mutex_);
      cached_.emplace(bytes, block);
    });
  }
  std::size_t held() const override {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  std::size_t free_on_device() const override {
    const std::lock_guard lock(mutex_);
    return size_ - held_;
  }
  std::size_t size_of_device() const override { return size_; }

 private:
  ThreadStream& stream_;
  const std::size_t size_;
  mutable std::mutex mutex_;
  std::size_t held_ = 0;
  std::multimap<std::size_t, std::byte*> cached_;
};

}  // namespace

class RecordingDevice::Impl {
 public:
  Impl(RecordingDevice& device, std::size_t memory_bytes) : pool(memory_bytes, stream_number), allocator(device, *pool.pool, {}) {}

  struct Pool {
    Pool(std::size_t bytes, int& number)
        : stream(std::make_unique<ThreadStream>(number++, log)), pool(std::make_unique<HostPool>(*stream, bytes)) {}
    ~Pool() { stream.reset(); }  // works off what was given back, for which the pool must be there
    Log log;
    std::unique_ptr<ThreadStream> stream;
    std::unique_ptr<HostPool> pool;
  };
  int stream_number = 0;
  Pool pool;
  StreamAllocator allocator;
  KernelTable kernels = queued_kernels();
  std::shared_ptr<Flag> hold;
  std::mutex mutex;
};

RecordingDevice::RecordingDevice(int index, std::size_t memory_bytes) : index_(index), impl_(std::make_unique<Impl>(*this, memory_bytes)) {}
RecordingDevice::~RecordingDevice() = default;

Buffer RecordingDevice::allocate(std::size_t bytes) { return impl_->allocator.allocate(bytes); }
AllocatorStats RecordingDevice::allocator_stats() const { return impl_->allocator.stats(); }

void RecordingDevice::copy(void* destination, const void* source, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  as_thread(stream).push("copy", [destination, source, bytes] { std::memcpy(destination, source, bytes); });
}

Stream& RecordingDevice::default_stream() { return *impl_->pool.stream; }
std::unique_ptr<Stream> RecordingDevice::new_stream() {
  const std::lock_guard lock(impl_->mutex);
  return std::make_unique<ThreadStream>(impl_->stream_number++, impl_->pool.log);
}
std::unique_ptr<Stream> RecordingDevice::new_priority_stream() { return new_stream(); }
std::unique_ptr<Event> RecordingDevice::new_event() { return std::make_unique<FlagEvent>(); }
const KernelTable& RecordingDevice::kernels() const { return impl_->kernels; }

std::vector<std::string> RecordingDevice::log() const { return impl_->pool.log.lines(); }
void RecordingDevice::clear_log() { impl_->pool.log.clear(); }

void RecordingDevice::hold_default_stream() {
  impl_->hold = std::make_shared<Flag>();
  impl_->pool.stream->push("", [hold = impl_->hold] { hold->wait(); });
}
void RecordingDevice::release_default_stream() {
  if (impl_->hold) impl_->hold->set();
}

}  // namespace lockstep::testing
