#include "tests/support/recording_device.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/data/augment_kernels.h"
#include "lockstep/reduce/compression_kernels.h"
#include "src/core/memory/pinned_allocator.h"
#include "src/core/memory/stream_allocator.h"
#include "tests/support/recording_stream.h"

namespace lockstep::testing {

namespace {

// The form in which an argument is kept until the stream executes the call: host memory that it refers to may be gone
// by then.
template <typename T> struct Kept {
  explicit Kept(T value) : value(value) {}
  T get() { return value; }
  T value;
};
template <typename T> struct Kept<const T&> {
  explicit Kept(const T& value) : value(value) {}
  const T& get() { return value; }
  T value;
};
template <> struct Kept<Stream&> {
  explicit Kept(Stream&) {}
  Stream& get() { return cpu_device().default_stream(); }
};
template <typename T> struct Kept<std::span<const T>> {
  explicit Kept(std::span<const T> value) : values(value.begin(), value.end()) {}
  std::span<const T> get() { return values; }
  std::vector<T> values;
};

template <auto entry> struct Queued;
std::atomic<const KernelTable*> g_kernels = nullptr;  // null: the reference kernels
const KernelTable& table_of(const KernelTable& kernels, const KernelTable*) { return kernels; }
template <typename Family> const Family& table_of(const KernelTable& kernels, const Family*) {
  return kernels.families.get<Family>();
}

template <typename T> bool is_half_view(const T& argument) {
  if constexpr (std::is_same_v<T, InputView> || std::is_same_v<T, OutputView>)
    return argument && (argument.dtype == DType::kFloat16 || argument.dtype == DType::kBFloat16);
  else
    return false;
}

template <typename Table, typename... Arguments, void (*Table::*entry)(Arguments...)> struct Queued<entry> {
  static void call(Arguments... arguments) {
    Stream& stream = std::get<sizeof...(Arguments) - 1>(std::tie(arguments...));
    const bool is_mixed = (is_half_view(arguments) || ...);
    const std::string what = is_mixed ? std::string("mixed ") + name : name;
    constexpr const Table* kTable = nullptr;
    if (const KernelTable* const others = g_kernels) {
      as_thread(stream).push(what, [] {});
      return (table_of(*others, kTable).*entry)(arguments...);
    }
    as_thread(stream).push(
        what, [kept = std::make_shared<std::tuple<Kept<Arguments>...>>(Kept<Arguments>(arguments)...)] {
          std::apply([](auto&... each) { (table_of(reference_kernels(), kTable).*entry)(each.get()...); }, *kept);
        });
  }
  static inline const char* name = "";
};

template <auto entry, typename Table> void queue(Table& table, const char* name) {
  Queued<entry>::name = name;
  table.*entry = Queued<entry>::call;
}

KernelTable make_queued_kernels() {
  KernelTable table{};
#define LOCKSTEP_OPERATOR(name, ...) queue<&KernelTable::name>(table, #name);
#include "lockstep/core/operators.def"
  static data::AugmentKernels augment;
  queue<&data::AugmentKernels::augment>(augment, "augment");
  table.families.set(augment);
  using hooks::Int8Kernels, hooks::PowerSgdKernels, hooks::TopKKernels;
  static Int8Kernels int8;
  queue<&Int8Kernels::quantise>(int8, "int8 quantise");
  queue<&Int8Kernels::expand>(int8, "int8 expand");
  queue<&Int8Kernels::average>(int8, "int8 average");
  table.families.set(int8);
  static PowerSgdKernels power_sgd;
  queue<&PowerSgdKernels::refill>(power_sgd, "power_sgd refill");
  queue<&PowerSgdKernels::multiply>(power_sgd, "power_sgd multiply");
  queue<&PowerSgdKernels::multiply_transposed>(power_sgd, "power_sgd multiply_transposed");
  queue<&PowerSgdKernels::orthonormalise>(power_sgd, "power_sgd orthonormalise");
  queue<&PowerSgdKernels::expand>(power_sgd, "power_sgd expand");
  table.families.set(power_sgd);
  static TopKKernels top_k;
  queue<&TopKKernels::select>(top_k, "top_k select");
  queue<&TopKKernels::expand>(top_k, "top_k expand");
  table.families.set(top_k);
  return table;
}

// Made once: ranks that are threads make their devices at the same time.
const KernelTable& queued_kernels() {
  static const KernelTable kTable = make_queued_kernels();
  return kTable;
}

// Like the driver's pool: memory that was freed in the order of a stream is reused in that order, so at once. While
// that stream is captured, allocations are part of the graph, and memory from outside cannot be freed.
class HostPool : public MemoryPool {
 public:
  HostPool(std::size_t size, Log& log) : size_(size), log_(log) {}
  void follow(Stream& stream) { stream_ = &stream; }
  // Whether memory from outside was freed since the last call.
  bool has_wrong_frees() { return wrong_frees_.exchange(false); }

  ~HostPool() override {
    for (auto& [order, cached] : cached_)
      for (auto& [bytes, block] : cached) std::free(block);
  }
  std::byte* take(std::size_t bytes) override { return take_in_order(stream_, bytes); }
  std::byte* take_on(Stream& stream, std::size_t bytes) override { return take_in_order(&stream, bytes); }
  std::byte* take_apart(std::size_t bytes) override {
    count_call();
    const std::lock_guard lock(mutex_);
    return make(bytes);
  }
  void give_back(std::byte* block, std::size_t bytes) noexcept override { give_back_in_order(stream_, block, bytes); }
  void give_back_on(Stream& stream, std::byte* block, std::size_t bytes) noexcept override {
    give_back_in_order(&stream, block, bytes);
  }
  void settle(std::size_t keep) override {
    count_call();
    if (is_captured(stream_)) wrong_frees_ = true;
    if (stream_ != nullptr) stream_->synchronize();
    const std::lock_guard lock(mutex_);
    auto& cached = cached_[stream_];
    for (auto block = cached.begin(); held_ > keep && block != cached.end(); block = cached.erase(block)) {
      held_ -= block->first;
      std::free(block->second);
    }
  }
  std::size_t held() const override {
    count_call();
    const std::lock_guard lock(mutex_);
    return held_;
  }
  std::size_t free_on_device() const override {
    const std::lock_guard lock(mutex_);
    return size_ - held_;
  }
  std::size_t size_of_device() const override { return size_; }

 private:
  std::byte* take_in_order(Stream* order, std::size_t bytes) {
    count_call();
    if (is_captured(order)) log_.count([](auto& counts) { ++counts.allocation_nodes; });
    const std::lock_guard lock(mutex_);
    auto& cached = cached_[order];
    const auto found = cached.find(bytes);
    if (found == cached.end()) return make(bytes);
    std::byte* const block = found->second;
    cached.erase(found);
    return block;
  }
  void give_back_in_order(Stream* order, std::byte* block, std::size_t bytes) noexcept {
    count_call();
    if (is_captured(order)) wrong_frees_ = true;
    const std::lock_guard lock(mutex_);
    cached_[order].emplace(bytes, block);
  }
  std::byte* make(std::size_t bytes) {
    if (bytes > size_ - held_) return nullptr;
    held_ += bytes;
    return static_cast<std::byte*>(std::aligned_alloc(512, bytes));
  }

  void count_call() const {
    log_.count([](auto& counts) { ++counts.pool_calls; });
  }
  static bool is_captured(Stream* stream) { return stream != nullptr && stream->is_capturing(); }

  const std::size_t size_;
  Log& log_;
  Stream* stream_ = nullptr;
  std::atomic<bool> wrong_frees_{false};
  mutable std::mutex mutex_;
  std::size_t held_ = 0;
  std::map<Stream*, std::multimap<std::size_t, std::byte*>> cached_;  // in the order of each stream
};

class PinnedHeap : public PinnedSource {
 public:
  std::byte* take(std::size_t bytes) override { return static_cast<std::byte*>(std::aligned_alloc(4096, bytes)); }
  void give_back(std::byte* block) noexcept override { std::free(block); }
};

}  // namespace

class RecordingDevice::Impl {
 public:
  Impl(RecordingDevice& device, std::size_t memory_bytes)
      : pool(memory_bytes, log),
        allocator(device, pool, {}),
        pinned(device, heap),
        uploader(device, pinned),
        stream(stream_number++, log, allocator) {
    pool.follow(stream);
  }
  ~Impl() { pool.follow(cpu_device().default_stream()); }  // the stream is destroyed before the memory

  Log log;
  HostPool pool;
  StreamAllocator allocator;
  PinnedHeap heap;
  PinnedAllocator pinned;
  Uploader uploader;
  int stream_number = 0;
  ThreadStream stream;  // destroyed first, when it has finished its queue
  const KernelTable& kernels = queued_kernels();
  std::shared_ptr<Flag> hold;
  std::mutex mutex;
};

RecordingDevice::RecordingDevice(int index, std::size_t memory_bytes)
    : index_(index), impl_(std::make_unique<Impl>(*this, memory_bytes)) {}
RecordingDevice::~RecordingDevice() = default;

Buffer RecordingDevice::allocate(std::size_t bytes) { return impl_->allocator.allocate(bytes); }
AllocatorStats RecordingDevice::allocator_stats() const { return impl_->allocator.stats(); }
void RecordingDevice::empty_cache() { impl_->allocator.empty_cache(); }

void RecordingDevice::copy(void* destination, const void* source, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  as_thread(stream).push("copy", [destination, source, bytes] { std::memcpy(destination, source, bytes); });
}

void RecordingDevice::upload(void* destination, const void* source, std::size_t bytes, Stream& stream) {
  impl_->uploader.upload(destination, source, bytes, stream);
}
Buffer RecordingDevice::take_pinned(std::size_t bytes) { return impl_->pinned.allocate(bytes); }

void RecordingDevice::begin_capture(Stream& stream) {
  impl_->allocator.begin_capture();
  testing::begin_capture(as_thread(stream));
}
std::unique_ptr<Graph> RecordingDevice::end_capture(Stream& stream) {
  const std::shared_ptr<void> memory = impl_->allocator.end_capture();
  auto graph = std::make_unique<RecordedGraph>(testing::end_capture(as_thread(stream)), memory);
  if (impl_->pool.has_wrong_frees())
    throw Error("recording device: memory from outside of a graph was given back in it");
  impl_->log.count([](Counts& counts) { ++counts.captures; });
  return graph;
}

Stream& RecordingDevice::default_stream() { return impl_->stream; }
std::unique_ptr<Stream> RecordingDevice::new_stream() {
  const std::lock_guard lock(impl_->mutex);
  return std::make_unique<ThreadStream>(impl_->stream_number++, impl_->log, impl_->allocator);
}
std::unique_ptr<Stream> RecordingDevice::new_priority_stream() { return new_stream(); }
std::unique_ptr<Event> RecordingDevice::new_event() { return std::make_unique<FlagEvent>(impl_->log); }
const KernelTable& RecordingDevice::own_kernels() const { return impl_->kernels; }

std::vector<std::string> RecordingDevice::log() const { return impl_->log.lines(); }
RecordingDevice::Counts RecordingDevice::counts() const { return impl_->log.counts(); }
void RecordingDevice::clear_log() { impl_->log.clear(); }
MemoryPool& RecordingDevice::pool() { return impl_->pool; }

void RecordingDevice::hold_default_stream() {
  impl_->hold = std::make_shared<Flag>();
  impl_->stream.push("", [hold = impl_->hold] { hold->wait(); });
}
void RecordingDevice::release_default_stream() {
  if (impl_->hold) impl_->hold->set();
}

RecordedDevicesCompute::RecordedDevicesCompute(const KernelTable& kernels) { g_kernels = &kernels; }
RecordedDevicesCompute::~RecordedDevicesCompute() { g_kernels = nullptr; }

}  // namespace lockstep::testing
