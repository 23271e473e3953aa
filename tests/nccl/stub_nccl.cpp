#include "tests/nccl/stub_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/comm/operation/composite.h"
#include "src/core/base/half.h"
#include "tests/nccl/stub_comm.h"
#include "tests/nccl/stub_sums.h"
#include "tests/nccl/stub_types.h"
#include "tests/support/recording_device.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// One rank's part of an operation, run when its stream executes it.
using Part = std::function<void(ncclComm&)>;

struct Queued {
  ncclComm* communicator;
  HostStream* stream;
  std::string what;
  Part part;
};
thread_local int group_depth = 0;
thread_local std::vector<Queued> group;

// The sends and receives of a group run together.
struct Transfer {
  bool send;
  std::byte* data;
  std::size_t bytes;
  int peer;
};
thread_local std::vector<Transfer> transfers;
thread_local ncclComm* transfers_of = nullptr;
thread_local HostStream* transfers_on = nullptr;

void push(const Queued& queued, std::size_t grouped) {
  auto copy = std::make_shared<ncclComm>();  // the communicator may be destroyed before the stream executes the call
  copy->world = queued.communicator->world;
  copy->rank = queued.communicator->rank;
  copy->ranks = queued.communicator->ranks;
  copy->grouped = grouped;
  copy->factors = queued.communicator->factors;
  if (queued.stream->is_recorded()) copy->graphs = queued.communicator->graphs;
  queued.stream->push(queued.what, [copy, part = queued.part] {
    if (control.stall.load()) {
      std::unique_lock lock(copy->world->mutex);
      copy->world->changed.wait(lock, [&] { return copy->world->is_aborted(copy->rank); });
      return;
    }
    part(*copy);
  });
}

// Like NCCL's non-blocking communicators: a thread queues the call, some time after it has returned.
ncclResult_t launch(std::vector<Queued> calls) {
  if (calls.empty()) return ncclSuccess;
  ncclComm& communicator = *calls.front().communicator;
  if (communicator.blocks) {
    if (const ncclResult_t result = communicator.await_peers(); result != ncclSuccess) return result;
    for (const Queued& queued : calls) push(queued, calls.size());
    return ncclSuccess;
  }
  if (communicator.launcher.joinable()) communicator.launcher.join();
  communicator.polls.store(0);
  communicator.is_launching.store(true);
  communicator.launcher = std::thread([&communicator, calls = std::move(calls)] {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    for (const Queued& queued : calls) push(queued, calls.size());
    communicator.is_launching.store(false);
  });
  return ncclInProgress;
}

ncclResult_t enqueue(const char* call, ncclComm_t communicator, cudaStream_t stream, Part part) {
  if (const ncclResult_t result = fails(call); result != ncclSuccess) return result;
  if (communicator->is_busy()) return ncclInvalidUsage;
  Queued queued{communicator, reinterpret_cast<HostStream*>(stream), call, std::move(part)};
  if (group_depth == 0) return launch({queued});
  group.push_back(std::move(queued));
  return communicator->blocks ? ncclSuccess : ncclInProgress;
}

// A rank's input to a reduction: multiplied by its factor if it has one, as in an average.
Data offer_of(ncclComm& comm, const void* send, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  const auto* const data = static_cast<const std::byte*>(send);
  auto offer = std::make_shared<std::vector<std::byte>>(data, data + bytes_of(count, type));
  if (const auto factor = comm.factors.find(op); factor != comm.factors.end())
    lockstep::scale(dtype_of(type), offer->data(), offer->data(), count, factor->second);
  else if (op == ncclAvg)
    lockstep::scale(dtype_of(type), offer->data(), offer->data(), count, share_of_average(comm.ranks, type));
  return offer;
}

// As in NCCL, only the ranks that have something to send or receive take part, and data from one rank to another
// arrives in order.
void run_transfers(ncclComm& comm, const std::vector<Transfer>& mine) {
  World& world = *comm.world;
  std::unique_lock lock(world.mutex);
  const auto await = [&](auto&& condition) {
    world.changed.wait(lock, [&] { return world.is_aborted(comm.rank) || condition(); });
    return !world.is_aborted(comm.rank);
  };
  std::vector<std::weak_ptr<const std::vector<std::byte>>> sent;
  for (const Transfer& send : mine)
    if (send.send) sent.push_back(world.mail[{comm.rank, send.peer}].emplace_back(copy_of(send.data, send.bytes)));
  world.changed.notify_all();
  for (const Transfer& receive : mine) {
    if (receive.send) continue;
    auto& box = world.mail[{receive.peer, comm.rank}];
    if (!await([&] { return !box.empty(); })) return;
    take(receive.data, box.front(), receive.bytes);
    box.pop_front();
    world.changed.notify_all();
  }
  await([&] { return std::all_of(sent.begin(), sent.end(), [](const auto& each) { return each.expired(); }); });
}

}  // namespace

#define STUB extern "C" __attribute__((visibility("default")))

STUB StubNccl* stub_nccl_control() { return &control; }
STUB ncclResult_t ncclGetVersion(int* version) {
  *version = control.version.load();
  return fails("ncclGetVersion");
}
STUB const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInvalidUsage: return "invalid usage";
    default: return "stub result";
  }
}
STUB const char* ncclGetLastError(ncclComm_t) { return "said by the stub"; }

STUB ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> ids{0};
  std::memset(id, 0, sizeof *id);
  const int number = ++ids;
  std::memcpy(id->internal, &number, sizeof number);
  return fails("ncclGetUniqueId");
}
STUB ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                         ncclConfig_t* config) {
  if (const ncclResult_t result = fails("ncclCommInitRankConfig"); result != ncclSuccess) return result;
  if (config == nullptr || (config->blocking != 0 && config->blocking != 1)) return ncclInvalidUsage;
  auto* const made = new ncclComm;
  made->world = world_of(std::string(id.internal, sizeof id.internal), ranks);
  made->rank = rank;
  made->ranks = ranks;
  made->blocks = config->blocking == 1;
  ++control.communicators;
  std::atomic_ref<ncclComm_t>(*communicator).store(made);  // before it waits for peers, as in NCCL
  return made->blocks ? made->await_peers() : ncclInProgress;
}
STUB ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  if (const ncclResult_t result = fails("ncclCommGetAsyncError"); result != ncclSuccess) return result;
  *state = static_cast<ncclResult_t>(control.async_error.load());
  if (*state != ncclSuccess) ++control.async_errors_told;
  if (communicator->blocks) return ncclSuccess;
  if (*state == ncclSuccess && communicator->polls.fetch_add(1) < control.polls_until_ready.load())
    *state = ncclInProgress;
  if (*state == ncclSuccess && communicator->is_launching.load()) *state = ncclInProgress;
  if (*state == ncclSuccess && communicator->is_finalizing && communicator->is_in_graphs()) *state = ncclInProgress;
  return ncclSuccess;
}
STUB ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  if (const ncclResult_t result = fails("ncclCommFinalize"); result != ncclSuccess) return result;
  ++control.finalized;
  communicator->is_finalizing = true;
  communicator->polls.store(0);
  while (communicator->blocks && communicator->is_in_graphs() &&
         !communicator->world->is_aborted_now(communicator->rank))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return communicator->blocks ? ncclSuccess : ncclInProgress;
}
STUB ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  --control.communicators;
  control.reductions_made -= static_cast<int>(communicator->factors.size());
  // The owner of a blocking communicator may be in a call, or about to make one, when another thread aborts it.
  static std::mutex mutex;
  static std::vector<std::unique_ptr<ncclComm>> kept;
  const std::lock_guard lock(mutex);
  if (communicator->blocks)
    kept.emplace_back(communicator);
  else
    delete communicator;
  return ncclSuccess;
}
// Ends the waits of this rank's streams, then waits for the graphs to be destroyed. Other ranks are not affected.
STUB ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  ++control.aborts;
  {
    const std::lock_guard lock(communicator->world->mutex);
    communicator->world->aborted[static_cast<std::size_t>(communicator->rank)] = true;
    communicator->world->changed.notify_all();
  }
  for (int round = 0; round < 20'000 && communicator->is_in_graphs(); ++round)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ncclCommDestroy(communicator);
}

STUB ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const ncclResult_t result = fails("ncclMemAlloc"); result != ncclSuccess) return result;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  ++control.allocations;
  return ncclSuccess;
}
STUB ncclResult_t ncclMemFree(void* memory) {
  --control.allocations;
  std::free(memory);
  return ncclSuccess;
}
STUB ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** handle) {
  if (const ncclResult_t result = fails("ncclCommRegister"); result != ncclSuccess) return result;
  *handle = &control;
  ++control.registrations;
  return ncclSuccess;
}
STUB ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  --control.registrations;
  return ncclSuccess;
}

STUB ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t,
                                           ncclComm_t communicator) {
  if (const ncclResult_t result = fails("ncclRedOpCreatePreMulSum"); result != ncclSuccess) return result;
  const auto read = [scalar](auto value) {
    std::memcpy(&value, scalar, sizeof value);
    return value;
  };
  const double factor = type == ncclFloat64    ? read(0.0)
                        : type == ncclFloat32  ? read(0.0F)
                        : type == ncclBfloat16 ? widen(read(BFloat16{}))
                                               : widen(read(Float16{}));
  *op = static_cast<ncclRedOp_t>(communicator->next_op++);
  communicator->factors[*op] = factor;
  ++control.reductions_made;
  return ncclSuccess;
}
STUB ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t communicator) {
  if (communicator->is_busy()) return ncclInvalidUsage;
  communicator->factors.erase(op);
  --control.reductions_made;
  return ncclSuccess;
}

STUB ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t communicator, cudaStream_t stream) {
  return enqueue("ncclAllReduce", communicator, stream, [=](ncclComm& comm) {
    const auto offer = offer_of(comm, send, count, type, op);
    std::vector<Data> all;
    if (!comm.world->meet(comm.rank, offer, all)) return;
    reduce_all(all, static_cast<std::byte*>(receive), count, type, op, comm.grouped);
  });
}
STUB ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                             int root, ncclComm_t communicator, cudaStream_t stream) {
  return enqueue("ncclReduce", communicator, stream, [=](ncclComm& comm) {
    const auto offer = offer_of(comm, send, count, type, op);
    std::vector<Data> all;
    if (!comm.world->meet(comm.rank, offer, all)) return;
    if (comm.rank == root)
      reduce_chunk(all, static_cast<std::byte*>(receive), 0, count, type, op, static_cast<std::size_t>(root));
  });
}
STUB ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return enqueue("ncclReduceScatter", communicator, stream, [=](ncclComm& comm) {
    const auto offer = offer_of(comm, send, count * static_cast<std::size_t>(comm.ranks), type, op);
    std::vector<Data> all;
    if (!comm.world->meet(comm.rank, offer, all)) return;
    reduce_chunk(all, static_cast<std::byte*>(receive), static_cast<std::size_t>(comm.rank) * count, count, type, op,
                 static_cast<std::size_t>(comm.rank));
  });
}
STUB ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                                ncclComm_t communicator, cudaStream_t stream) {
  return enqueue("ncclBroadcast", communicator, stream, [=](ncclComm& comm) {
    std::vector<Data> all;
    if (!comm.world->meet(comm.rank, comm.rank == root ? copy_of(send, bytes_of(count, type)) : nullptr, all)) return;
    take(receive, all[static_cast<std::size_t>(root)], bytes_of(count, type));
  });
}
STUB ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                ncclComm_t communicator, cudaStream_t stream) {
  return enqueue("ncclAllGather", communicator, stream, [=](ncclComm& comm) {
    const std::size_t bytes = bytes_of(count, type);
    std::vector<Data> all;
    if (!comm.world->meet(comm.rank, copy_of(send, bytes), all)) return;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      take(static_cast<std::byte*>(receive) + rank * bytes, all[rank], bytes);
  });
}

STUB ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                           cudaStream_t stream) {
  if (const ncclResult_t result = fails("ncclSend"); result != ncclSuccess) return result;
  transfers.push_back({true, static_cast<std::byte*>(const_cast<void*>(send)), bytes_of(count, type), peer});
  transfers_of = communicator;
  transfers_on = reinterpret_cast<HostStream*>(stream);
  return ncclSuccess;
}
STUB ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                           cudaStream_t stream) {
  if (const ncclResult_t result = fails("ncclRecv"); result != ncclSuccess) return result;
  transfers.push_back({false, static_cast<std::byte*>(receive), bytes_of(count, type), peer});
  transfers_of = communicator;
  transfers_on = reinterpret_cast<HostStream*>(stream);
  return ncclSuccess;
}
STUB ncclResult_t ncclGroupStart() {
  ++group_depth;
  return fails("ncclGroupStart");
}
STUB ncclResult_t ncclGroupEnd() {
  if (const ncclResult_t result = fails("ncclGroupEnd"); result != ncclSuccess) return result;
  if (--group_depth > 0) return ncclSuccess;
  if (transfers_of != nullptr)
    group.push_back({transfers_of, transfers_on, "ncclSend and ncclRecv",
                     [mine = transfers](ncclComm& comm) { run_transfers(comm, mine); }});
  transfers.clear();
  transfers_of = nullptr;
  return launch(std::exchange(group, {}));
}
