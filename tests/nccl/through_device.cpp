#include "tests/nccl/through_device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "src/comm/nccl/nccl_backend.h"

namespace lockstep::testing {
namespace {

const nccl::Api& stub_api() {
  static const nccl::Api kApi = nccl::load_api(STUB_NCCL);
  return kApi;
}

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  const std::byte* end() const { return begin + bytes; }
};

std::size_t sum_of(const std::vector<std::size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); }

// What a call reads and writes on this rank.
struct Operands {
  std::vector<Range> reads, writes;
};

Operands operands_of(const Operation& operation, const Place& place) {
  const Signature& call = operation.signature;
  const std::size_t one = operation.bytes(), all = one * static_cast<std::size_t>(place.world_size), element = size_of(call.dtype);
  const bool is_root = call.root == place.rank;
  const auto of = [&](std::size_t send, std::size_t receive) {
    return Operands{{{static_cast<const std::byte*>(operation.send), send}}, {{static_cast<const std::byte*>(operation.receive), receive}}};
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
    case OperationKind::kAllocate:
      return {};
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast:
      return of(one, one);
    case OperationKind::kReduce:
      return of(one, is_root ? one : 0);
    case OperationKind::kAllGather:
      return of(one, all);
    case OperationKind::kGather:
      return of(one, is_root ? all : 0);
    case OperationKind::kScatter:
      return of(is_root ? all : 0, one);
    case OperationKind::kReduceScatter:
      return of(all, one);
    case OperationKind::kAllToAll:
      return of(all, all);
    case OperationKind::kAllGatherV:
      return of(operation.layout->receive_counts[static_cast<std::size_t>(place.rank)] * element, one);
    case OperationKind::kAllToAllV:
      return of(sum_of(operation.layout->send_counts) * element, sum_of(operation.layout->receive_counts) * element);
  }
  return {};
}

// One call's memory on the device: ranges that touch lie together there as they do here.
class Staged {
 public:
  Staged(Device& device, const Operands& operands) : device_(&device) {
    std::vector<Range> ranges = operands.reads;
    ranges.insert(ranges.end(), operands.writes.begin(), operands.writes.end());
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& range : ranges) {
      if (range.bytes == 0) continue;
      if (blocks_.empty() || range.begin >= blocks_.back().host.end())
        blocks_.push_back({range, {}});
      else
        blocks_.back().host.bytes = static_cast<std::size_t>(std::max(blocks_.back().host.end(), range.end()) - blocks_.back().host.begin);
    }
    for (Block& block : blocks_) block.memory = device.allocate(block.host.bytes);
    for (const Range& read : operands.reads)
      if (read.bytes != 0) device.copy(at(read.begin), read.begin, read.bytes, device.default_stream());
    writes_ = operands.writes;
  }

  // Where the device has what lies here; null for what the call does not use.
  std::byte* at(const void* host) const {
    const auto* const byte = static_cast<const std::byte*>(host);
    for (const Block& block : blocks_)
      if (byte >= block.host.begin && byte < block.host.end()) return block.memory.data() + (byte - block.host.begin);
    return nullptr;
  }

  void copy_back() const {
    for (const Range& write : writes_)
      if (write.bytes != 0) device_->copy(const_cast<std::byte*>(write.begin), at(write.begin), write.bytes, device_->default_stream());
  }

 private:
  struct Block {
    Range host;
    Buffer memory;
  };
  Device* device_;
  std::vector<Block> blocks_;
  std::vector<Range> writes_;
};

// Done when the result has been copied back.
class Results : public CompletionQueue {
 public:
  explicit Results(Device& device) : device_(device) {}

  // The memory of calls that failed may go once no copy is under way any more.
  template <typename Call>
  auto settled(Call&& call) {
    try {
      return call();
    } catch (...) {
      device_.default_stream().synchronize();
      throw;
    }
  }

  std::uint64_t add(Work work, Staged staged) {
    work.order_before(device_.default_stream());
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
      results_.erase(results_.begin(), std::next(found));  // they complete in order
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
  void order_before(std::uint64_t ticket, Stream&) override { wait(ticket); }

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

// A message by way of device memory; what came is copied back by who waits, or asks.
class DeviceMessage : public CompletionQueue {
 public:
  DeviceMessage(RecordingDevice& device, const Message& message, bool is_receive)
      : device_(device), message_(message), is_receive_(is_receive), memory_(device.allocate(message.bytes())) {
    if (!is_receive) device.copy(memory_.data(), message.data, message.bytes(), device.default_stream());
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
  void order_before(std::uint64_t ticket, Stream&) override { wait(ticket); }

 private:
  void copy_back() {
    const std::lock_guard lock(mutex_);
    if (!is_receive_ || std::exchange(is_back_, true)) return;
    device_.copy(message_.data, memory_.data(), message_.bytes(), device_.default_stream());
    device_.default_stream().synchronize();
  }

  RecordingDevice& device_;
  const Message message_;
  const bool is_receive_;
  const Buffer memory_;
  Work work_;
  std::mutex mutex_;
  bool is_back_ = false;
};

class ThroughDevice : public Backend {
 public:
  ThroughDevice(const BackendContext& context, RecordingDevice& device)
      : place_(context.place),
        device_(device),
        inner_(make_nccl_backend(context, stub_api())),
        results_(std::make_shared<Results>(device)) {}
  ~ThroughDevice() override {
    inner_.reset();
    device_.default_stream().synchronize();
  }

  std::string_view name() const override { return inner_->name(); }
  std::string_view transport() const override { return inner_->transport(); }
  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override {
    const Operands operands = operands_of(operation, place_);
    if (operands.reads.empty() || is_device_memory(operands)) return results_->settled([&] { return inner_->start(operation); });
    Staged staged(device_, operands);
    Operation there = operation;
    there.send = staged.at(operation.send);
    there.receive = staged.at(operation.receive);
    if (operation.layout && !operation.layout->regions.empty()) {
      auto layout = std::make_shared<Layout>(*operation.layout);
      for (Region& region : layout->regions) region.data = staged.at(region.data);
      there.layout = std::move(layout);
    }
    const std::uint64_t ticket = results_->settled([&] { return results_->add(inner_->start(there), std::move(staged)); });
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
    Buffer buffer = inner_->allocate(bytes);
    device_.default_stream().synchronize();
    allocated_.push_back({buffer.data(), bytes});
    return buffer;
  }

  void abort(const std::string& reason) override { inner_->abort(reason); }
  void throw_if_over(const std::function<std::string()>& doing) override { inner_->throw_if_over(doing); }
  void leave() noexcept override { inner_->leave(); }
  TransportCounters counters() const override { return inner_->counters(); }

 private:
  // A Work may be dropped before its message has gone.
  Work keep(const std::shared_ptr<DeviceMessage>& message) {
    messages_.push_back(message);
    return Work(message, 0);
  }

  bool is_device_memory(const Operands& operands) const {
    const auto is_ours = [this](const Range& range) {
      return range.bytes == 0 || std::any_of(allocated_.begin(), allocated_.end(),
                                             [&](const Range& ours) { return range.begin >= ours.begin && range.end() <= ours.end(); });
    };
    return std::all_of(operands.reads.begin(), operands.reads.end(), is_ours) &&
           std::all_of(operands.writes.begin(), operands.writes.end(), is_ours);
  }

  const Place place_;
  RecordingDevice& device_;
  std::unique_ptr<Backend> inner_;
  const std::shared_ptr<Results> results_;
  std::vector<Range> allocated_;
  std::vector<std::shared_ptr<DeviceMessage>> messages_;
};

}  // namespace

std::unique_ptr<Backend> make_nccl_over_stub(BackendContext context, RecordingDevice& device) {
  context.device = &device;
  return std::make_unique<ThroughDevice>(context, device);
}

}  // namespace lockstep::testing
