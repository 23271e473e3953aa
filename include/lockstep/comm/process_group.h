// The process group: all ranks of a job, and the collectives among them.
//
// Order: all ranks make the same collective calls on a group in the same order. The group numbers the calls, and
// compares each with the peers' (kind, count, type, reduction, root, purpose). If they differ, every rank throws
// MismatchError with both sides; if a peer dies, PeerLost; if a peer does not arrive before the deadline, TimeoutError.
// The group has then ended, and later calls throw the same error at once.
//
// Arguments: a rank that passes an invalid argument throws InvalidArgument before the call is counted. If only one rank
// does so, the others wait for it until their deadline.
//
// Threads: one thread at a time may call into a group; any thread may call abort() and use a Work.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/group_options.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/device.h"
#include "lockstep/core/place.h"

#pragma GCC visibility push(default)
namespace lockstep {

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // Joins the ranks that meet in `store`, which is a store, or a view with its own prefix, for each group and each
  // attempt. Blocks until all ranks have joined; after the store timeout the error names the missing ones. Most
  // programs call init_process_group() instead; tests use this to make groups of threads.
  static std::shared_ptr<ProcessGroup> create(const Place& place, std::shared_ptr<Store> store, std::string token,
                                              const ProcessGroupOptions& options = {},
                                              std::string advertise_address = "127.0.0.1");
  // A group around existing backends, one for each kind of device, for tests and simulations. `gpu_backend` serves the
  // memory of `device`, which is this rank's device.
  static std::shared_ptr<ProcessGroup> wrap(const Place& place, std::unique_ptr<Backend> cpu_backend,
                                            std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                            std::unique_ptr<Backend> gpu_backend = nullptr, Device* device = nullptr);
  ~ProcessGroup();  // leaves the group: does not wait for peers, which do not count this rank as lost

  const Place& place() const;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }
  bool has_ranks_of(const ProcessGroup& other) const;  // the same ranks of one job, in the same order
  Device& local_device() const;                        // this rank's
  std::chrono::milliseconds timeout() const;           // of calls that do not set their own

  // -- collectives. The plain forms block. The async forms return at once, and the group owns the buffers until the
  // Work is done. Any memory works; registered memory (allocate()) is fastest. Data that is reduced must be aligned to
  // its type. `count` may be 0. `send` is only read. Buffers must not overlap, unless the call is in place: `send` and
  // `receive` are the same pointer, or, if one buffer has more parts of `count` elements, the smaller one is part
  // `rank` of the larger (all_gather: send = receive + rank * count; reduce_scatter: receive = send + rank * count).

  // receive = the reduction of `send` over all ranks, on all ranks.
  void all_reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                  const CallOptions& = {});
  Work all_reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& = {});
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                  const CallOptions& call = {}) {
    all_reduce(data, data, count, dtype, op, call);
  }
  Work all_reduce_async(void* data, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& call = {}) {
    return all_reduce_async(data, data, count, dtype, op, call);
  }
  // The same, on `root` only; the other ranks' `receive` is not used and may be null.
  void reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
              const CallOptions& = {});
  Work reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                    const CallOptions& = {});
  // send: world_size parts of `count`; receive: the reduction of part `rank` over all ranks.
  void reduce_scatter(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                      const CallOptions& = {});
  Work reduce_scatter_async(const void* send, void* receive, std::size_t count, DType dtype,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& = {});

  // Copies the root's `data` to all ranks.
  void broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work broadcast_async(void* data, std::size_t count, DType dtype, int root, const CallOptions& = {});
  // receive: world_size parts of `count`; part r is rank r's `send`. all_gather: on all ranks; gather: on `root` only.
  void all_gather(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  Work all_gather_async(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  void gather(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work gather_async(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  // receive: part `rank` of the root's `send`, which has world_size parts of `count`; the other ranks' `send` is not
  // used.
  void scatter(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work scatter_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                     const CallOptions& = {});
  // Both buffers have world_size parts of `count`. Part r of `receive` is part `rank` of rank r's `send`.
  void all_to_all(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  Work all_to_all_async(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});

  // The same with contiguous parts of different lengths. all_gather: part r has counts[r] elements; all ranks pass the
  // same counts. all_to_all: send_counts[r] elements go to rank r and receive_counts[r] come from it (compared); not in
  // place.
  using Counts = std::span<const std::size_t>;
  void all_gather(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& = {});
  Work all_gather_async(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& = {});
  void all_to_all(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                  const CallOptions& = {});
  Work all_to_all_async(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                        const CallOptions& = {});

  // Several buffers in one call, each in place, with the same counts on all ranks. They are checked once, and small
  // neighbouring buffers travel together.
  void all_reduce_coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& = {});
  Work all_reduce_coalesced_async(std::span<const Region> buffers, DType dtype, ReduceOp op = ReduceOp::kSum,
                                  const CallOptions& = {});
  void broadcast_coalesced(std::span<const Region> buffers, DType dtype, int root, const CallOptions& = {});
  Work broadcast_coalesced_async(std::span<const Region> buffers, DType dtype, int root, const CallOptions& = {});

  // For a wrapper of a model: the next collective of this thread also compares `state` over all ranks, at no extra
  // cost. If the ranks differ, they throw MismatchError that names the difference. A second call before that collective
  // replaces the state.
  void compare_with_next_call(const PassState& state);
  // Counts a new wrapper and returns the group's number of wrappers so far. All ranks make their wrappers in the same
  // order, so the number is the same on all of them.
  std::uint32_t count_wrapper();

  void barrier(const CallOptions& = {});
  Work barrier_async(const CallOptions& = {});

  // Runs compute(stream), which returns nothing, after all calls issued so far and concurrently with the caller's work,
  // as Work::then() does. It prepares the data of a later call, and is not numbered.
  template <typename Compute> Work compute_async(Compute compute, DeviceKind device = DeviceKind::kCpu) {
    static_assert(std::is_void_v<std::invoke_result_t<Compute&, Stream&>>,
                  "a computation returns nothing; Work::then() makes calls");
    return last_call(device).then(std::move(compute));
  }

  // A barrier that names all ranks that do not arrive within `timeout` (0: the group's) after this rank. The group then
  // ends: this rank throws TimeoutError, the others PeerLost with the same text. Every rank sends a message to every
  // other, so use it at the start, at the end of an epoch, or to find a rank that hangs, not in every step. The backend
  // must support messages.
  void monitored_barrier(std::chrono::milliseconds timeout = {}, const CallOptions& = {});

  // -- messages between two ranks, apart from the collectives. A receive takes the oldest message with its sender and
  // tag (>= 0); its type and count must match, else all ranks throw MismatchError. send() returns when the data may be
  // changed: it has left, or the receiver has stored it until it is received. The timeout counts from the wait for the
  // call. Messages make progress while a rank waits for one, but not while it waits for a collective: a barrier does
  // not complete a large send_async.
  void send(const void* data, std::size_t count, DType dtype, int to, int tag = 0, const CallOptions& = {});
  Work send_async(const void* data, std::size_t count, DType dtype, int to, int tag = 0, const CallOptions& = {});
  // Returns the sender: `from`, or with kAnyRank the rank whose message arrived. The async form writes it to *sender,
  // which must live until the Work is done.
  int recv(void* data, std::size_t count, DType dtype, int from, int tag = 0, const CallOptions& = {});
  Work recv_async(void* data, std::size_t count, DType dtype, int from, int tag = 0, int* sender = nullptr,
                  const CallOptions& = {});

  template <typename T> void all_reduce(std::span<T> data, ReduceOp op = ReduceOp::kSum, const CallOptions& call = {}) {
    all_reduce(data.data(), data.size(), kDTypeOf<T>, op, call);
  }
  template <typename T> void broadcast(std::span<T> data, int root, const CallOptions& call = {}) {
    broadcast(data.data(), data.size(), kDTypeOf<T>, root, call);
  }

  // Byte strings of any length, on the CPU backend. The root's `text` on all ranks; or each rank's text on all ranks,
  // in rank order.
  std::string broadcast_text(std::string_view text, int root, const CallOptions& = {});
  std::vector<std::string> all_gather_text(std::string_view text, const CallOptions& = {});

  // Collective. The ranks with the same color form a new group, ordered by key, then by their rank here; a rank with a
  // negative color joins no group and gets null. The new groups have this group's backend, transport and timeouts, and
  // meet in its store: blocks as create() does. Both groups may be used alternately, and may end in any order.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0);
  // The same with other options, which all ranks give alike: a backend for host memory alone, another timeout. Options
  // that are left out are this group's.
  std::shared_ptr<ProcessGroup> split(int color, int key, const ProcessGroupOptions& options);

  // -- GPU graphs. Between begin_capture() and end_capture(), calls on GPU memory become part of the graph that the
  // device's default stream is recording (Device::begin_capture). Only the async forms may be used, and only
  // stream_wait() of their Work. Calls on host memory throw InvalidArgument: they would run once, not with every
  // launch. begin_capture() waits for earlier calls on host memory and their continuations. end_capture() is
  // collective: all ranks must have captured the same calls.
  void begin_capture();
  struct CapturedCalls {
    std::uint64_t hash = 0;
    std::int32_t index = 0;  // number of the graph in the group, from 1
  };
  CapturedCalls end_capture();
  void
  drop_capture() noexcept;  // for a rank that fails to capture its graph, in place of end_capture(); not collective
  // Call this after each launch of the graph on the default stream. It is one call, numbered, compared and timed like
  // any other.
  Work replayed(const CapturedCalls& calls, const CallOptions& = {});

  // Returns registered memory, zeroed; see Backend::allocate(). Collective.
  Buffer allocate(std::size_t bytes, DeviceKind device = DeviceKind::kCpu);

  // The addresses of the same range of every rank's registered memory, in rank order, if all ranks share it, else an
  // empty vector; see Backend::peer_addresses().
  std::vector<std::byte*> peer_addresses(const void* data, std::size_t bytes,
                                         DeviceKind device = DeviceKind::kCpu) const;

  // Leaves the group, as the destructor does; later calls throw InvalidArgument. A running call completes first; a call
  // that has not begun is dropped.
  void leave();

  // Calls `end` before this rank leaves the group, by leave() or the destructor, while its peers still hear of it: for
  // work beside the training that must be complete by then. `end` must not throw, nor use this group.
  void before_leaving(std::function<void()> end);

  // Ends the group on all ranks: calls under way and later calls throw PeerLost with "rank R aborted the group:
  // reason". It is for a rank that cannot continue (a bad batch, a full disk), so that the others do not wait until
  // their deadline. Any thread may call it, also while another is in a call. It does not throw, and does nothing if the
  // group has already ended. The results of calls under way are undefined.
  void abort(const std::string& reason);

  // Writes the last 1,000 operations of this rank, for each of its groups, as JSON for `lockrun diagnose`. The file is
  // `path`, or LOCKSTEP_FLIGHT_DIR/rank<R>.json if `path` is empty. Any thread may call it, also after an error. Throws
  // FileError, or InvalidArgument if the folder is not set.
  void dump_flight_record(const std::string& path = "") const;

  // The backend for a kind of device. Throws InvalidArgument if the group has none.
  Backend& backend(DeviceKind device = DeviceKind::kCpu) const;

 private:
  friend std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options);
  class Impl;
  Work last_call(DeviceKind device) const;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Joins the job that the environment describes, and makes its group the default one. Reads RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by torchrun and lockrun), or the variables of Open
// MPI, Hydra or srun; without any of these, this is rank 0 of 1. Blocks until all ranks have joined. Throws
// InvalidArgument for an invalid environment, and RendezvousError that names the address or the missing ranks.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

// The default group: the last one that init_process_group() made in this thread, while it exists. A thread that made
// none gets the group of the one thread of the process that did; null if there is none. Throws InvalidArgument if
// several threads have one each (ranks that are threads).
std::shared_ptr<ProcessGroup> default_process_group();

}  // namespace lockstep
#pragma GCC visibility pop
