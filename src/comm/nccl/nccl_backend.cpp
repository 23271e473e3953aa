#include "src/comm/nccl/nccl_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/ring/ring_backend.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

// What a rank is about to do, as the others get to see it.
struct Card {
  Signature signature;
  char purpose[24] = {};
};

Card card_of(const Operation& operation) {
  Card card{operation.signature};
  const char* const name = operation.purpose.name != nullptr ? operation.purpose.name : "";
  std::memcpy(card.purpose, name, std::min(std::strlen(name), sizeof card.purpose - 1));
  return card;
}

std::string describe(int rank, const Card& card) {
  const Purpose purpose{card.purpose[0] != '\0' ? card.purpose : nullptr, card.signature.purpose_index};
  return fmt::format("rank {}: {}", rank, lockstep::describe(card.signature, purpose));
}

bool moves_data(OperationKind kind) { return kind != OperationKind::kBarrier && kind != OperationKind::kAllocate; }

ncclUniqueId agree_on_id(const BackendContext& context, const nccl::Api& api) {
  ncclUniqueId id{};
  if (context.place.rank == 0) {
    if (const ncclResult_t result = api.ncclGetUniqueId(&id); result != ncclSuccess)
      nccl::throw_nccl_error(api, result, "ncclGetUniqueId", nullptr);
    context.store->set("nccl/id", std::string_view(id.internal, sizeof id.internal));
  } else {
    const std::string text = context.store->get("nccl/id", context.store_timeout);
    if (text.size() != sizeof id.internal)
      throw RendezvousError("nccl: rank 0's id has {} bytes instead of {}", text.size(), sizeof id.internal);
    std::memcpy(id.internal, text.data(), text.size());
  }
  return id;
}

}  // namespace

// Operations in the order of their issue: each is queued on the device at once, then compared, then seen to its end.
class NcclBackend::Queue : public CompletionQueue {
 public:
  Queue(const BackendContext& context, Device& device, std::unique_ptr<Backend> watch, const nccl::Api& api)
      : place_(context.place),
        timeout_(context.timeout),
        device_(device),
        watch_(std::move(watch)),
        communicator_(api, place_, agree_on_id(context, api), context.store_timeout, [this] { watch_->throw_if_over(); }),
        stream_(device.new_priority_stream()),
        before_(device.new_event()),
        cards_(static_cast<std::size_t>(place_.world_size)) {
    for (Slot& slot : slots_) slot.event = device.new_event();
    thread_ = std::thread([this] { serve(); });
  }
  ~Queue() override { stop(); }

  // By one thread at a time, which alone raises issued_.
  std::uint64_t issue(const Operation& operation) {
    const std::uint64_t ticket = issued_ + 1;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return failure_ || ticket - completed_ <= kSlots; });
      throw_if_failed();
    }
    Slot& slot = slots_[ticket % kSlots];  // nobody else's until it is issued
    slot.operation = operation;
    slot.is_queued = moves_data(operation.signature.kind);
    if (slot.is_queued) queue(slot);
    const std::lock_guard lock(mutex_);
    issued_ = ticket;
    changed_.notify_all();
    return ticket;
  }

  bool done(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    if (completed_ >= ticket) return true;
    throw_if_failed();
    return false;
  }
  void wait(std::uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= ticket || failure_; });
    if (completed_ < ticket) throw_if_failed();
  }
  void order_before(std::uint64_t ticket, Stream& stream) override {
    const std::lock_guard lock(mutex_);
    if (completed_ >= ticket) return;
    throw_if_failed();
    if (const Slot& slot = slots_[ticket % kSlots]; slot.is_queued) slot.event->order_before(stream);
  }

  Buffer allocate(const std::shared_ptr<Queue>& self, std::size_t bytes) {
    Operation operation;
    operation.signature.kind = OperationKind::kAllocate;
    operation.signature.sequence = ++allocations_;
    operation.signature.count = bytes;
    operation.signature.dtype = DType::kUInt8;
    operation.timeout = timeout_;
    wait(issue(operation));
    void* const memory = communicator_.allocate(std::max<std::size_t>(bytes, 1));
    Buffer buffer(static_cast<std::byte*>(memory), bytes, &device_, [self, memory] { self->communicator_.free(memory); });
    const auto floats = static_cast<std::int64_t>(bytes / sizeof(float));
    device_.kernels().fill(reinterpret_cast<float*>(memory), 0, floats, device_.default_stream());
    if (bytes % sizeof(float) != 0) {
      static constexpr std::byte kZeros[sizeof(float)] = {};
      device_.copy(buffer.data() + floats * sizeof(float), kZeros, bytes % sizeof(float), device_.default_stream());
    }
    return buffer;
  }

  void fail(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::move(failure);
      changed_.notify_all();
    }
    communicator_.abort();
  }

  void abort(const std::string& reason) {
    watch_->abort(reason);  // wakes this rank's thread as well, which fails the queue
    fail(std::make_exception_ptr(PeerLost("rank {} aborted the group: {}", place_.rank, reason)));
  }

  void leave() noexcept { watch_->leave(); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(stop_, true)) return;
      if (!failure_)
        failure_ = std::make_exception_ptr(PeerLost("this rank's process group is gone; wait for a Work before its group goes"));
      changed_.notify_all();
    }
    watch_->leave();
    if (thread_.joinable()) thread_.join();
    communicator_.abort();
  }

 private:
  static constexpr std::uint64_t kSlots = 256;
  struct Slot {
    Operation operation;
    std::unique_ptr<Event> event;
    bool is_queued = false;  // on the device
    Buffer copy;             // of what is sent, where it must not lie where it is received
  };

  void queue(Slot& slot) {
    before_->record(device_.default_stream());
    before_->order_before(*stream_);
    if (slot.operation.signature.kind == OperationKind::kAllToAll && slot.operation.send == slot.operation.receive) send_a_copy(slot);
    communicator_.enqueue(slot.operation, static_cast<cudaStream_t>(stream_->native()));
    slot.event->record(*stream_);
  }

  // NCCL's sends and receives must not overlap.
  void send_a_copy(Slot& slot) {
    const std::size_t bytes = slot.operation.bytes() * static_cast<std::size_t>(place_.world_size);
    slot.copy = device_.allocate(bytes);
    before_->record(device_.default_stream());  // in whose order memory is handed out
    before_->order_before(*stream_);
    device_.copy(slot.copy.data(), slot.operation.send, bytes, *stream_);
    slot.operation.send = slot.copy.data();
  }

  void throw_if_failed() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  void serve() {
    for (std::uint64_t ticket = 1;; ++ticket) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return issued_ >= ticket || stop_ || failure_; });
        if (stop_ || failure_) return;
      }
      const Slot& slot = slots_[ticket % kSlots];  // not reused before it completed
      try {
        compare(slot.operation);
        if (slot.is_queued) see_to_its_end(slot);
      } catch (...) {
        return fail(std::current_exception());
      }
      slots_[ticket % kSlots].copy = {};
      const std::lock_guard lock(mutex_);
      completed_ = ticket;
      changed_.notify_all();
    }
  }

  // Over the ring, whose own deadline and watch name who is missing.
  void compare(const Operation& operation) {
    Card mine = card_of(operation);
    Operation exchange;
    exchange.signature.sequence = ++exchanges_;
    exchange.signature.kind = OperationKind::kAllGather;
    exchange.signature.dtype = DType::kUInt8;
    exchange.signature.count = sizeof(Card);
    exchange.send = &mine;
    exchange.receive = cards_.data();
    exchange.timeout = operation.timeout;
    exchange.purpose = {lockstep::name_of(operation.signature.kind).data(), static_cast<std::int32_t>(operation.signature.sequence)};
    watch_->run(exchange);
    for (int peer = 0; peer < place_.world_size; ++peer) {
      const Card& theirs = cards_[static_cast<std::size_t>(peer)];
      if (theirs.signature == mine.signature) continue;
      const int first = std::min(peer, place_.rank);
      const std::string text =
          fmt::format("the ranks make different calls: {}; {}. All ranks must make the same calls in the same order.",
                      describe(first, first == peer ? theirs : mine), describe(std::max(peer, place_.rank), first == peer ? mine : theirs));
      throw MismatchError("{}", text);
    }
  }

  void see_to_its_end(const Slot& slot) {
    const auto deadline = Clock::now() + slot.operation.timeout;
    for (int round = 0; !slot.event->done(); ++round) {
      communicator_.check();
      watch_->throw_if_over();
      if (Clock::now() > deadline)
        throw TimeoutError(
            "{}: all ranks have come, but the GPU has not finished it in {:.1f} s: is another rank's GPU busy with other work?",
            lockstep::describe(slot.operation.signature, slot.operation.purpose),
            std::chrono::duration<double>(slot.operation.timeout).count());
      if (stopped()) return;
      if (round < 200)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(round < 2000 ? 50 : 1000));
    }
  }

  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stop_ || failure_;
  }

  const Place place_;
  const std::chrono::milliseconds timeout_;
  Device& device_;
  const std::unique_ptr<Backend> watch_;
  nccl::Communicator communicator_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> before_;
  std::vector<Card> cards_;
  std::array<Slot, kSlots> slots_;
  std::uint64_t allocations_ = 0;
  std::uint64_t exchanges_ = 0;  // the thread's

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint64_t issued_ = 0, completed_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

NcclBackend::NcclBackend(const BackendContext& context, Device& device, std::unique_ptr<Backend> watch, const nccl::Api& api)
    : queue_(std::make_shared<Queue>(context, device, std::move(watch), api)) {}
NcclBackend::~NcclBackend() { queue_->stop(); }

Work NcclBackend::start(const Operation& operation) { return Work(queue_, queue_->issue(operation)); }
Buffer NcclBackend::allocate(std::size_t bytes) { return queue_->allocate(queue_, bytes); }
void NcclBackend::abort(const std::string& reason) { queue_->abort(reason); }
void NcclBackend::leave() noexcept { queue_->leave(); }

namespace {

// Which rank has which GPU: two on one are refused, since NCCL would hang or fail without saying why.
void check_gpus(const BackendContext& context, const Device& device) {
  Store& store = *context.store;
  store.set(fmt::format("nccl/gpu/{}", context.place.rank), device.identity());
  if (env::integer(env::kShareGpu, 1, 64)) return;
  std::vector<std::string> gpus;
  for (int rank = 0; rank < context.place.world_size; ++rank) {
    gpus.push_back(store.get(fmt::format("nccl/gpu/{}", rank), context.store_timeout));
    for (int other = 0; other < rank; ++other)
      if (gpus[static_cast<std::size_t>(other)] == gpus.back())
        throw InvalidArgument(
            "nccl: ranks {} and {} both use {}: start as many ranks as there are GPUs, or, for tests, share it with `lockrun --share-gpu "
            "2`",
            other, rank, gpus.back());
  }
}

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(const BackendContext& context, Device& device) {
  if (device.kind() != DeviceKind::kCuda) throw InvalidArgument("nccl: this rank computes on {}; NCCL is for GPUs", device.name());
  setenv("NCCL_ALGO", "^NVLS", 0);  // its sums differ from call to call
  check_gpus(context, device);
  BackendContext watch = context;
  watch.store = scoped(context.store, "nccl/watch/");
  return std::make_unique<NcclBackend>(context, device, make_ring_backend(watch), nccl::api());
}

}  // namespace lockstep
