#include "src/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/nccl/nap.h"
#include "src/comm/nccl/nccl_types.h"

namespace lockstep::nccl {

namespace {

using Clock = std::chrono::steady_clock;

// How long an abort, which graphs may delay, is waited for by a rank that continues and by one that ends. Kernels end
// at once in any case.
constexpr auto kAbortWait = std::chrono::milliseconds(500), kLastAbortWait = std::chrono::milliseconds(2000);

// NCCL restores the thread's current device after a call. Without this, that would be the first device, which may be
// another rank's.
void use_device_of(const Stream& stream) noexcept {
  try {
    stream.native();
  } catch (const std::exception&) {  // the device has failed: NCCL will report it
  }
}

}  // namespace

#define LOCKSTEP_NCCL(function, ...) run([&] { return api_.function(__VA_ARGS__); }, #function)

// Makes one NCCL call. An abort may have come between two calls of one operation.
template <typename Call> void Communicator::run(const Call& call, const char* name) {
  throw_if_over();
  if (!watch_ || look_ == nullptr || is_in_group_) return must(call(), name);
  watch_->over(*look_, [&] {
    throw_if_over();  // abort() waits until a call is under way, or until none can begin
    must(call(), name);
  });
}

// A reduction for NCCL. One with a factor is created for the call and destroyed when that is queued.
class Communicator::Reduction {
 public:
  explicit Reduction(Communicator& owner) : owner_(owner) {}
  void make(const Operation& operation) {
    const Signature& call = operation.signature;
    if (!is_reduction(call.kind)) return;
    if (call.op != ReduceOp::kPremulSum) {
      op_ = operator_of(call);
      return;
    }
    Scalar scalar = scalar_of(call.dtype, operation.factor);
    owner_.must(owner_.api_.ncclRedOpCreatePreMulSum(&op_, scalar.bytes, type_of(call.dtype), ncclScalarHostImmediate,
                                                     owner_.communicator_),
                "ncclRedOpCreatePreMulSum");
    made_ = true;
  }
  ~Reduction() {
    const std::lock_guard lock(owner_.mutex_);
    if (made_ && !owner_.over_) owner_.api_.ncclRedOpDestroy(op_, owner_.communicator_);
  }
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  ncclRedOp_t get() const { return op_; }

 private:
  Communicator& owner_;
  ncclRedOp_t op_ = ncclSum;
  bool made_ = false;
};

// A group of calls that NCCL launches together. If one fails, the destructor ends the group on this thread.
class Communicator::Group {
 public:
  explicit Group(Communicator& owner) : owner_(owner) {
    owner_.must(owner_.api_.ncclGroupStart(), "ncclGroupStart");
    owner_.is_in_group_ = true;
  }
  void end() {
    owner_.is_in_group_ = is_open_ = false;
    owner_.run([this] { return owner_.api_.ncclGroupEnd(); }, "ncclGroupEnd");
  }
  ~Group() {
    try {
      if (is_open_) end();
    } catch (const std::exception&) {  // keep the first error
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  Communicator& owner_;
  bool is_open_ = true;
};

Communicator::Communicator(const Api& api, const Place& place, const Stream& stream, const ncclUniqueId& id,
                           std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting, bool blocks)
    : api_(api),
      place_(place),
      stream_(stream),
      watch_(blocks ? std::make_unique<CallWatch>([this] { abort(); }) : nullptr) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocks ? 1 : 0;
  try {
    call("ncclCommInitRankConfig", timeout, keep_waiting,
         [&] { LOCKSTEP_NCCL(ncclCommInitRankConfig, &communicator_, place.world_size, id, place.rank, &config); });
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  abort();
  await_abort(kLastAbortWait);
}

void Communicator::must(ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw_nccl_error(api_, result, call, over_ ? nullptr : communicator_);
}

// If the communicator blocks, the call is complete on return.
void Communicator::call(const char* name, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting,
                        const std::function<void()>& make) {
  const std::function<void()> look = [&, deadline = Clock::now() + timeout] {
    keep_waiting();
    if (Clock::now() > deadline)
      throw TimeoutError("NCCL: {} of rank {} waited {:.1f} s for its peers", name, place_.rank,
                         std::chrono::duration<double>(timeout).count());
  };
  {
    const std::lock_guard lock(mutex_);
    throw_if_over();
    look_ = &look;
    try {
      make();
    } catch (...) {
      look_ = nullptr;
      throw;
    }
    look_ = nullptr;
  }
  for (int round = 0; !watch_ && !is_ready(name); ++round) {
    look();
    short_nap(round);
  }
}

bool Communicator::is_ready(const char* call) {
  const std::lock_guard lock(mutex_);
  throw_if_over();
  ncclResult_t state = ncclSuccess;
  LOCKSTEP_NCCL(ncclCommGetAsyncError, communicator_, &state);
  must(state, call);
  return state == ncclSuccess;
}

void Communicator::throw_if_over() const {
  if (over_) throw PeerLost("NCCL: the communicator of rank {} was aborted", place_.rank);
}

void Communicator::enqueue(const Operation& operation, cudaStream_t stream, const std::function<void()>& keep_waiting) {
  Reduction reduction(*this);
  call("an operation", operation.timeout, keep_waiting, [&] {
    reduction.make(operation);
    if (operation.layout && !operation.layout->regions.empty())
      coalesced(operation, reduction.get(), stream);
    else
      plain(operation, reduction.get(), stream);
  });
}

void Communicator::plain(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream) {
  const Signature& call = operation.signature;
  const ncclDataType_t type = type_of(call.dtype);
  const void* const send = operation.send;
  void* const receive = operation.receive;
  switch (call.kind) {
    case OperationKind::kAllReduce:
      return LOCKSTEP_NCCL(ncclAllReduce, send, receive, call.count, type, reduction, communicator_, stream);
    case OperationKind::kBroadcast:
      return LOCKSTEP_NCCL(ncclBroadcast, receive, receive, call.count, type, call.root, communicator_, stream);
    case OperationKind::kReduce:
      return LOCKSTEP_NCCL(ncclReduce, send, receive, call.count, type, reduction, call.root, communicator_, stream);
    case OperationKind::kReduceScatter:
      return LOCKSTEP_NCCL(ncclReduceScatter, send, receive, call.count, type, reduction, communicator_, stream);
    case OperationKind::kAllGather:
      return LOCKSTEP_NCCL(ncclAllGather, send, receive, call.count, type, communicator_, stream);
    default: return grouped(operation, stream);
  }
}

// NCCL composes these of sends and receives: counts by rank say how much each rank gets from each other one.
void Communicator::grouped(const Operation& operation, cudaStream_t stream) {
  const Signature& call = operation.signature;
  const auto* send = static_cast<const std::byte*>(operation.send);
  auto* receive = static_cast<std::byte*>(operation.receive);
  const std::vector<std::size_t> none(ranks(), 0), all(ranks(), call.count);
  const auto me = static_cast<std::size_t>(place_.rank), root = static_cast<std::size_t>(std::max(call.root, 0));
  std::vector<std::size_t> one(ranks(), 0);
  one[root] = call.count;
  switch (call.kind) {
    case OperationKind::kAllToAll: return exchange(send, all, receive, all, call.dtype, stream);
    case OperationKind::kAllToAllV:
      return exchange(send, operation.layout->send_counts, receive, operation.layout->receive_counts, call.dtype,
                      stream);
    case OperationKind::kGather: return exchange(send, one, receive, me == root ? all : none, call.dtype, stream);
    case OperationKind::kScatter: return exchange(send, me == root ? all : none, receive, one, call.dtype, stream);
    case OperationKind::kAllGatherV: {
      const auto& counts = operation.layout->receive_counts;
      Group group(*this);
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        const void* const from = rank == me ? static_cast<const void*>(send) : receive;
        if (counts[rank] != 0)
          LOCKSTEP_NCCL(ncclBroadcast, from, receive, counts[rank], type_of(call.dtype), static_cast<int>(rank),
                        communicator_, stream);
        receive += counts[rank] * size_of(call.dtype);
      }
      return group.end();
    }
    default: LOCKSTEP_CHECK(false, "nccl: cannot execute {}", name_of(call.kind));
  }
}

// If every part has the same place in `send`, as in gather, only one rank has a nonzero count and the offset is 0.
void Communicator::exchange(const std::byte* send, const std::vector<std::size_t>& send_counts, std::byte* receive,
                            const std::vector<std::size_t>& receive_counts, DType dtype, cudaStream_t stream) {
  const ncclDataType_t type = type_of(dtype);
  Group group(*this);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    const int peer = static_cast<int>(rank);
    if (send_counts[rank] != 0) LOCKSTEP_NCCL(ncclSend, send, send_counts[rank], type, peer, communicator_, stream);
    if (receive_counts[rank] != 0)
      LOCKSTEP_NCCL(ncclRecv, receive, receive_counts[rank], type, peer, communicator_, stream);
    send += send_counts[rank] * size_of(dtype);
    receive += receive_counts[rank] * size_of(dtype);
  }
  group.end();
}

void Communicator::coalesced(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream) {
  Group group(*this);
  for (const Region& region : operation.layout->regions) {
    Operation part = operation;
    part.layout = nullptr;
    part.signature.count = region.count;
    part.send = part.receive = region.data;
    if (part.signature.count != 0) plain(part, reduction, stream);
  }
  group.end();
}

void* Communicator::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  throw_if_over();
  void *memory = nullptr, *registration = nullptr;
  LOCKSTEP_NCCL(ncclMemAlloc, &memory, bytes);
  try {
    LOCKSTEP_NCCL(ncclCommRegister, communicator_, memory, bytes, &registration);
  } catch (...) {
    api_.ncclMemFree(memory);
    throw;
  }
  registrations_.emplace_back(memory, registration);
  return memory;
}

void Communicator::free(void* memory) noexcept {
  await_abort(kAbortWait);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(registrations_.begin(), registrations_.end(),
                                  [memory](const auto& each) { return each.first == memory; });
  if (!over_ && found != registrations_.end()) api_.ncclCommDeregister(communicator_, found->second);
  if (found != registrations_.end()) registrations_.erase(found);
  api_.ncclMemFree(memory);
}

void Communicator::check() {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!watch_) lock.lock();
  if (over_ || (!lock.owns_lock() && !lock.try_lock())) return;
  ncclResult_t state = ncclSuccess;
  must(api_.ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
  must(state, "an operation on the GPU");
}

// Runs in its own thread, which uses none of our objects once it has chosen its device: the thread that calls this may
// destroy a graph later than the communicator. In a communicator that blocks, the running call is what must end; NCCL
// has stored the communicator before it waits for peers.
void Communicator::abort() noexcept {
  {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!watch_) lock.lock();
    while (!lock.owns_lock() && !lock.try_lock() && !watch_->has_call()) nap(0);
    const std::lock_guard abort_lock(abort_mutex_);
    const ncclComm_t made = std::atomic_ref<ncclComm_t>(communicator_).load();
    if (made == nullptr || over_.exchange(true)) return;
    std::promise<void> begun, ended;
    auto has_begun = begun.get_future();
    aborting_ = ended.get_future().share();
    std::thread([abort = api_.ncclCommAbort, made, &stream = stream_, begun = std::move(begun),
                 ended = std::move(ended)]() mutable {
      use_device_of(stream);
      begun.set_value();
      abort(made);
      ended.set_value();
    }).detach();
    has_begun.wait();
  }
  await_abort(kAbortWait);
}

void Communicator::await_abort(std::chrono::milliseconds at_most) const noexcept {
  std::shared_future<void> aborting;
  {
    const std::lock_guard lock(abort_mutex_);
    aborting = aborting_;
  }
  if (aborting.valid()) aborting.wait_for(at_most);
}

// When our kernels have ended, sends from our memory may still be on their way; NCCL's finalise waits for them. It may
// also wait for peers that are late or gone.
void Communicator::finish(std::chrono::milliseconds at_most) noexcept {
  use_device_of(stream_);
  if (over_) return;
  try {
    call(
        "ncclCommFinalize", at_most, [] {}, [this] { LOCKSTEP_NCCL(ncclCommFinalize, communicator_); });
    const std::lock_guard lock(mutex_);
    if (over_.exchange(true)) return;
    api_.ncclCommDestroy(communicator_);
  } catch (const std::exception&) {
    abort();
  }
}

}  // namespace lockstep::nccl
