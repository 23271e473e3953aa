#include "tests/nccl/through_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/nccl/nccl_backend.h"

namespace lockstep::testing {
namespace {

const nccl::Api& stub_api() {
  static const nccl::Api kApi = nccl::load_api(STUB_NCCL);
  return kApi;
}

constexpr std::size_t kPage = 4096;

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  const std::byte* end() const { return begin + bytes; }
};

std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// The memory that a call reads and writes on this rank.
struct Operands {
  std::vector<Range> reads, writes;
};

Operands operands_of(const Operation& operation, const Place& place) {
  const Signature& call = operation.signature;
  const std::size_t one = operation.bytes(), all = one * static_cast<std::size_t>(place.world_size),
                    element = size_of(call.dtype);
  const bool is_root = call.root == place.rank;
  const auto of = [&](std::size_t send, std::size_t receive) {
    return Operands{{{static_cast<const std::byte*>(operation.send), send}},
                    {{static_cast<const std::byte*>(operation.receive), receive}}};
  };
  if (operation.layout && !operation.layout->regions.empty()) {
    Operands operands;
    for (const Region& region : operation.layout->regions)
      operands.writes.push_back({static_cast<const std::byte*>(region.data), region.count * element});
    operands.reads = operands.writes;
    return operands;
  }
  switch (call.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kAllocate: return {};
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast: return of(one, one);
    case OperationKind::kReduce: return of(one, is_root ? one : 0);
    case OperationKind::kAllGather: return of(one, all);
    case OperationKind::kGather: return of(one, is_root ? all : 0);
    case OperationKind::kScatter: return of(is_root ? all : 0, one);
    case OperationKind::kReduceScatter: return of(all, one);
    case OperationKind::kAllToAll: return of(all, all);
    case OperationKind::kAllGatherV:
      return of(operation.layout->receive_counts[static_cast<std::size_t>(place.rank)] * element, one);
    case OperationKind::kAllToAllV:
      return of(sum_of(operation.layout->send_counts) * element, sum_of(operation.layout->receive_counts) * element);
  }
  return {};
}

// Host memory that stands for registered device memory, and its copies on the device. May outlive the backend.
class DeviceCopies {
 public:
  void add(const Range& host, std::byte* there) {
    const std::lock_guard lock(mutex_);
    there_[host.begin] = {host, there};
  }
  void remove(const std::byte* host) {
    const std::lock_guard lock(mutex_);
    there_.erase(host);
  }
  // Returns null if there is no such memory.
  std::byte* of(const Range& part) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, copy] : there_)
      if (part.begin >= begin && part.end() <= copy.first.end()) return copy.second + (part.begin - begin);
    return nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::pair<Range, std::byte*>> there_;
};

// One call's memory on the device: ranges that overlap here overlap there. Copies use pinned memory; from other memory
// the host would have to wait for the call, or for earlier work.
class Staged {
 public:
  Staged(Device& device, const Operands& operands, const DeviceCopies& copies) : device_(&device) {
    std::vector<Range> ranges = operands.reads;
    ranges.insert(ranges.end(), operands.writes.begin(), operands.writes.end());
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& range : ranges) {
      if (range.bytes == 0) continue;
      if (blocks_.empty() || range.begin >= blocks_.back().host.end())
        blocks_.push_back({range, nullptr, {}, {}});
      else
        blocks_.back().host.bytes =
            static_cast<std::size_t>(std::max(blocks_.back().host.end(), range.end()) - blocks_.back().host.begin);
    }
    for (Block& block : blocks_) place(block, copies);
    reads_ = operands.reads;
    writes_ = operands.writes;
  }

  void copy_there() const {
    for (const Range& read : reads_) {
      if (read.bytes == 0) continue;
      std::memcpy(pinned(read), read.begin, read.bytes);
      device_->copy(at(read.begin), pinned(read), read.bytes, device_->default_stream());
    }
  }

  // The device address of memory here; null for memory that the call does not use.
  std::byte* at(const void* host) const {
    const auto* const byte = static_cast<const std::byte*>(host);
    const Block* const block = block_of(byte);
    return block != nullptr ? block->there + (byte - block->host.begin) : nullptr;
  }

  void copy_back() const {
    for (const Range& write : writes_)
      if (write.bytes != 0) device_->copy(pinned(write), at(write.begin), write.bytes, device_->default_stream());
  }
  // Call it once the copy is done.
  void deliver() const {
    for (const Range& write : writes_)
      if (write.bytes != 0) std::memcpy(const_cast<std::byte*>(write.begin), pinned(write), write.bytes);
  }

 private:
  struct Block {
    Range host;
    std::byte* there;
    Buffer memory, pinned;
  };
  void place(Block& block, const DeviceCopies& copies) const {
    block.pinned = device_->allocate_pinned(block.host.bytes);
    block.there = copies.of(block.host);
    if (block.there != nullptr) return;
    block.memory = device_->allocate(block.host.bytes);
    block.there = block.memory.data();
  }
  const Block* block_of(const std::byte* host) const {
    for (const Block& block : blocks_)
      if (host >= block.host.begin && host < block.host.end()) return &block;
    return nullptr;
  }
  std::byte* pinned(const Range& range) const {
    const Block& block = *block_of(range.begin);  // every range of the call belongs to one block
    return block.pinned.data() + (range.begin - block.host.begin);
  }
  Device* device_;
  std::vector<Block> blocks_;
  std::vector<Range> reads_, writes_;
};

// Done when the result has been copied back.
class Results : public CompletionQueue {
 public:
  explicit Results(Device& device) : device_(device) {}

  // The memory of failed calls may be freed once no copy is under way.
  template <typename Call> auto settled(Call&& call) {
    try {
      return call();
    } catch (...) {
      device_.default_stream().synchronize();
      throw;
    }
  }

  std::uint64_t add(Work work, Staged& staged) {
    work.stream_wait(device_.default_stream());
    staged.copy_back();
    const std::lock_guard lock(mutex_);
    Result& result = results_[++last_];
    result.work = std::move(work);
    result.copied = device_.new_event();
    result.staged.emplace(std::move(staged));
    result.copied->record(device_.default_stream());
    return last_;
  }
  bool done(std::uint64_t ticket) override {
    return settled([&] {
      const std::lock_guard lock(mutex_);
      const auto found = results_.find(ticket);
      if (found == results_.end()) return true;
      if (!found->second.work.done() || !found->second.copied->done()) return false;
      const auto end = std::next(found);
      for (auto each = results_.begin(); each != end; ++each) each->second.staged->deliver();  // they complete in order
      results_.erase(results_.begin(), end);
      return true;
    });
  }
  void wait(std::uint64_t ticket) override {
    Work work;
    {
      const std::lock_guard lock(mutex_);
      const auto found = results_.find(ticket);
      if (found == results_.end()) return;
      work = found->second.work;
    }
    settled([&] {
      work.wait();
      return true;
    });
    device_.default_stream().synchronize();
    done(ticket);
  }
  void stream_wait(std::uint64_t ticket, Stream&) override { wait(ticket); }

 private:
  struct Result {
    Work work;
    std::unique_ptr<Event> copied;
    std::optional<Staged> staged;
  };
  Device& device_;
  std::mutex mutex_;
  std::map<std::uint64_t, Result> results_;
  std::uint64_t last_ = 0;
};

// A message through device memory; received data is copied back by the thread that waits or polls.
class DeviceMessage : public CompletionQueue {
 public:
  DeviceMessage(Device& device, const Message& message, bool is_receive)
      : device_(device),
        message_(message),
        is_receive_(is_receive),
        memory_(device.allocate(message.bytes())),
        pinned_(device.allocate_pinned(message.bytes())) {
    if (is_receive || message.bytes() == 0) return;
    std::memcpy(pinned_.data(), message.data, message.bytes());
    device.copy(memory_.data(), pinned_.data(), message.bytes(), device.default_stream());
  }
  ~DeviceMessage() override { device_.default_stream().synchronize(); }
  Message there() const {
    Message message = message_;
    message.data = memory_.data();
    return message;
  }
  void set(Work work) { work_ = std::move(work); }

  bool done(std::uint64_t) override {
    if (!work_.done()) return false;
    copy_back();
    return true;
  }
  void wait(std::uint64_t) override {
    work_.wait();
    copy_back();
  }
  void stream_wait(std::uint64_t ticket, Stream&) override { wait(ticket); }

 private:
  void copy_back() {
    const std::lock_guard lock(mutex_);
    if (!is_receive_ || message_.bytes() == 0 || std::exchange(is_back_, true)) return;
    device_.copy(pinned_.data(), memory_.data(), message_.bytes(), device_.default_stream());
    device_.default_stream().synchronize();
    std::memcpy(message_.data, pinned_.data(), message_.bytes());
  }

  Device& device_;
  const Message message_;
  const bool is_receive_;
  const Buffer memory_, pinned_;
  Work work_;
  std::mutex mutex_;
  bool is_back_ = false;
};

class ThroughDevice : public Backend {
 public:
  ThroughDevice(const Place& place, Device& device, std::unique_ptr<Backend> inner)
      : place_(place), device_(device), inner_(std::move(inner)), results_(std::make_shared<Results>(device)) {}
  ~ThroughDevice() override {
    inner_.reset();
    device_.default_stream().synchronize();
  }

  std::string_view name() const override { return inner_->name(); }
  std::string_view transport() const override { return inner_->transport(); }
  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override {
    const Operands operands = operands_of(operation, place_);
    if (operands.reads.empty()) return results_->settled([&] { return inner_->start(operation); });
    Staged staged(device_, operands, *copies_);
    Operation there = operation;
    there.send = staged.at(operation.send);
    there.receive = staged.at(operation.receive);
    if (operation.layout && !operation.layout->regions.empty()) {
      auto layout = std::make_shared<Layout>(*operation.layout);
      for (Region& region : layout->regions) region.data = staged.at(region.data);
      there.layout = std::move(layout);
    }
    const std::uint64_t ticket = results_->settled([&] {
      staged.copy_there();
      return results_->add(inner_->start(there), staged);
    });
    return Work(results_, ticket);
  }

  Work send(const Message& message) override {
    const auto through = std::make_shared<DeviceMessage>(device_, message, false);
    through->set(inner_->send(through->there()));
    return keep(through);
  }
  Work receive(const Message& message) override {
    const auto through = std::make_shared<DeviceMessage>(device_, message, true);
    through->set(inner_->receive(through->there()));
    return keep(through);
  }

  Buffer allocate(std::size_t bytes) override {
    const Buffer there = inner_->allocate(bytes);
    device_.default_stream().synchronize();
    if (bytes == 0) return there;
    auto* const host = static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
    LOCKSTEP_CHECK(host != nullptr, "no memory");
    device_.copy(host, there.data(), bytes, device_.default_stream());
    device_.default_stream().synchronize();
    copies_->add({host, bytes}, there.data());
    return Buffer(host, bytes, &cpu_device(), [host, there, copies = copies_] {
      copies->remove(host);
      std::free(host);
    });
  }

  void abort(const std::string& reason) override { inner_->abort(reason); }
  void throw_if_over(const std::function<std::string()>& doing) override { inner_->throw_if_over(doing); }
  void leave() noexcept override { inner_->leave(); }
  TransportCounters counters() const override { return inner_->counters(); }

 private:
  // A Work may be destroyed before its message has been sent.
  Work keep(const std::shared_ptr<DeviceMessage>& message) {
    messages_.push_back(message);
    return Work(message, 0);
  }

  const Place place_;
  Device& device_;
  std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Results> results_;
  const std::shared_ptr<DeviceCopies> copies_ = std::make_shared<DeviceCopies>();
  std::vector<std::shared_ptr<DeviceMessage>> messages_;
};

}  // namespace

std::unique_ptr<Backend> make_nccl_over_stub(BackendContext context, RecordingDevice& device) {
  context.device = &device;
  return std::make_unique<ThroughDevice>(context.place, device,
                                         make_nccl_backend(context, make_host_backend, stub_api()));
}

std::unique_ptr<Backend> make_nccl_on_gpu(BackendContext context, Device& device) {
  check_gpu_and_nccl(context.place, &device);
  context.device = &device;
  return std::make_unique<ThroughDevice>(context.place, device, make_nccl_backend(context, make_host_backend));
}

}  // namespace lockstep::testing
