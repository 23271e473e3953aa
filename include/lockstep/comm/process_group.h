// The process group: all ranks of a job, and the collectives among them.
//
// Order: all ranks call the same collectives on a group in the same order; the group numbers the calls and every call
// is checked against the peers' (kind, count, type, op, root, what for). A disagreement throws MismatchError with both
// sides on every rank, a dead peer PeerLost, a peer that stays away TimeoutError; the group is then unusable and later
// calls throw the same at once.
// An argument that is refused (InvalidArgument) is refused on its rank before the call counts: if it is wrong on one
// rank only, the others wait for that rank until their deadline. Threads: one thread at a time may call into a group;
// abort() and Work may be used from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // Joins the ranks that meet in `store`: a store, or a view of one (a prefix), for each group and each attempt. Blocks
  // until all have come or the store timeout names who is missing. Most programs call init_process_group() instead;
  // tests make groups of threads with this.
  static std::shared_ptr<ProcessGroup> create(const Place& place, std::shared_ptr<Store> store, std::string token,
                                              const ProcessGroupOptions& options = {},
                                              std::string advertise_address = "127.0.0.1");
  // A group around backends made by hand (one a device kind), for tests and simulations.
  // `gpu_backend`: for the memory of `device`, this rank's.
  static std::shared_ptr<ProcessGroup> wrap(const Place& place, std::unique_ptr<Backend> cpu_backend,
                                            std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                            std::unique_ptr<Backend> gpu_backend = nullptr, Device* device = nullptr);
  ~ProcessGroup();  // leaves: peers do not count this rank as lost, and are not waited for

  const Place& place() const;
  int rank() const { return place().rank; }
  int world_size() const { return place().world_size; }
  bool has_ranks_of(const ProcessGroup& other) const;  // the same ranks of one job, in the same order
  Device& local_device() const;                        // this rank's
  std::chrono::milliseconds timeout() const;           // of calls that name none

  // -- collectives. The plain forms block; the async forms return at once, and the buffers are the group's until the
  // Work is done. Registered memory (allocate) is fastest, any pointer works (what is reduced: aligned to its type).
  // count 0 is fine everywhere. `send` is only read. Buffers are apart, or in place: the same pointer, or where parts
  // of `count` elements differ in number, the smaller buffer is part `rank` of the larger (all_gather: send = receive +
  // rank * count; reduce_scatter: receive = send + ...).

  // receive = the reduction of all ranks' `send`, on all ranks.
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
  // The same on `root` alone; the others' `receive` is not used and may be null.
  void reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
              const CallOptions& = {});
  Work reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                    const CallOptions& = {});
  // send: world_size parts of `count`; receive: the reduction of all ranks' part `rank`.
  void reduce_scatter(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                      const CallOptions& = {});
  Work reduce_scatter_async(const void* send, void* receive, std::size_t count, DType dtype,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& = {});

  // `data` of `root` to all.
  void broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work broadcast_async(void* data, std::size_t count, DType dtype, int root, const CallOptions& = {});
  // receive: world_size parts of `count`, part r is rank r's `send`. all_gather: on all ranks; gather: on `root` alone.
  void all_gather(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  Work all_gather_async(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  void gather(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work gather_async(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  // receive: part `rank` of the root's `send`, which has world_size parts of `count` (the others' is not used).
  void scatter(const void* send, void* receive, std::size_t count, DType dtype, int root, const CallOptions& = {});
  Work scatter_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                     const CallOptions& = {});
  // Both: world_size parts of `count`. Part r of `receive` is part `rank` of rank r's `send`.
  void all_to_all(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});
  Work all_to_all_async(const void* send, void* receive, std::size_t count, DType dtype, const CallOptions& = {});

  // The same with parts of unequal length, one after the other. all_gather: part r has counts[r] elements, the same
  // list on all ranks. all_to_all: send_counts[r] go to rank r, receive_counts[r] come from it (compared), and not in
  // place.
  using Counts = std::span<const std::size_t>;
  void all_gather(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& = {});
  Work all_gather_async(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& = {});
  void all_to_all(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                  const CallOptions& = {});
  Work all_to_all_async(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                        const CallOptions& = {});

  // Several buffers in one call, each in place, the same counts on all ranks: one check, and small neighbours travel
  // together.
  void all_reduce_coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& = {});
  Work all_reduce_coalesced_async(std::span<const Region> buffers, DType dtype, ReduceOp op = ReduceOp::kSum,
                                  const CallOptions& = {});
  void broadcast_coalesced(std::span<const Region> buffers, DType dtype, int root, const CallOptions& = {});
  Work broadcast_coalesced_async(std::span<const Region> buffers, DType dtype, int root, const CallOptions& = {});

  // For a wrapper of a model. The next collective that this thread calls compares `state`, too, over all ranks, at no
  // cost of its own: ranks that differ get MismatchError, which says in what. Another state of the same pass replaces
  // it until then.
  void compare_with_next_call(const PassState& state);
  // How many wrappers the group has had, the new one counted: the same on all ranks, which make them in the same order.
  std::uint32_t count_wrapper();

  void barrier(const CallOptions& = {});
  Work barrier_async(const CallOptions& = {});

  // Runs compute(stream), which returns nothing, behind all calls issued so far and beside the caller's work, as
  // Work::then() does: for what the next call sends. It has no number.
  template <typename Compute>
  Work compute_async(Compute compute, DeviceKind device = DeviceKind::kCpu) {
    static_assert(std::is_void_v<std::invoke_result_t<Compute&, Stream&>>,
                  "a computation returns nothing; Work::then() makes calls");
    return last_call(device).then(std::move(compute));
  }

  // A barrier that names all ranks that do not come within `timeout` (0: the group's) of this rank's arrival; then the
  // group is over: this rank throws TimeoutError, the others PeerLost with the same text. Every rank writes to every
  // other: for the start, an epoch's end, or to find the rank that hangs, not for every step. Needs a backend with
  // messages.
  void monitored_barrier(std::chrono::milliseconds timeout = {}, const CallOptions& = {});

  // -- messages from rank to rank, apart from the collectives: a receive takes the oldest message of that sender and
  // tag (>= 0) and must name its type and count, else all ranks get MismatchError. send() returns when the data may be
  // changed: it is under way, or kept by the receiver, which keeps messages until a call asks for them. A call's time
  // counts from its wait. Messages move while a rank waits for one, and not while it waits for a collective: a barrier
  // does not complete a large send_async.
  void send(const void* data, std::size_t count, DType dtype, int to, int tag = 0, const CallOptions& = {});
  Work send_async(const void* data, std::size_t count, DType dtype, int to, int tag = 0, const CallOptions& = {});
  // Returns the sender: `from`, or with kAnyRank the rank that sent it (async: *sender, which must live until the Work
  // is done).
  int recv(void* data, std::size_t count, DType dtype, int from, int tag = 0, const CallOptions& = {});
  Work recv_async(void* data, std::size_t count, DType dtype, int from, int tag = 0, int* sender = nullptr,
                  const CallOptions& = {});

  template <typename T>
  void all_reduce(std::span<T> data, ReduceOp op = ReduceOp::kSum, const CallOptions& call = {}) {
    all_reduce(data.data(), data.size(), kDTypeOf<T>, op, call);
  }
  template <typename T>
  void broadcast(std::span<T> data, int root, const CallOptions& call = {}) {
    broadcast(data.data(), data.size(), kDTypeOf<T>, root, call);
  }

  // Byte strings of any length, over the CPU backend: `text` of `root` to all; each rank's to all, by rank.
  std::string broadcast_text(std::string_view text, int root, const CallOptions& = {});
  std::vector<std::string> all_gather_text(std::string_view text, const CallOptions& = {});

  // Collective. Ranks that name the same color form a group of their own, in the order of their keys (equal keys: of
  // their ranks here); a negative color joins none and gets null. Backend, transport and timeouts are this group's, and
  // so is the store, by which the new groups meet: blocks as create() does. Both groups may be used in turn and may end
  // in any order.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0);

  // -- graphs of the GPU. Between these two, calls whose data is on the GPU become part of the graph that the device's
  // default stream records (Device::begin_capture); the asynchronous forms alone, and of their Work only stream_wait().
  // Other calls are refused: they would run once, and not with every launch; those issued before on the host's memory,
  // with all that is chained behind them, are waited for. end_capture() is collective once the graph is made: all ranks
  // must have captured the same.
  void begin_capture();
  struct CapturedCalls {
    std::uint64_t hash = 0;
    std::int32_t index = 0;  // the how-many-th graph of the group, from 1
  };
  CapturedCalls end_capture();
  void drop_capture() noexcept;  // instead, by a rank whose graph came to nothing: asks no other rank
  // To be called after each launch of the graph on the default stream: one call, numbered, compared and watched over
  // like any other.
  Work replayed(const CapturedCalls& calls, const CallOptions& = {});

  // Registered memory, zeroed, see Backend::allocate. Collective.
  Buffer allocate(std::size_t bytes, DeviceKind device = DeviceKind::kCpu);

  // The same bytes of each rank's registered memory, by rank, where all ranks share it: see Backend::peer_addresses.
  // Else empty.
  std::vector<std::byte*> peer_addresses(const void* data, std::size_t bytes,
                                         DeviceKind device = DeviceKind::kCpu) const;

  // This rank's part ends, as with the destructor; a later call throws InvalidArgument. A call that is being executed
  // ends first, one that has not begun is dropped.
  void leave();

  // Ends the group for all: a call under way on any rank, and any later one, throws PeerLost with "rank R aborted the
  // group: reason". For a rank that cannot go on (a bad batch, a full disk) and does not want the others to wait for
  // their deadline. Any thread, also while another is in a call; does not throw, and does nothing more once the group
  // is over. The results of calls under way are undefined.
  void abort(const std::string& reason);

  // Writes this rank's last 1,000 operations of each of its groups to `path`, as JSON for `lockrun diagnose`; "": to
  // LOCKSTEP_FLIGHT_DIR/rank<R>.json. Any thread, also after an error. Throws FileError, or InvalidArgument when there
  // is no such folder.
  void dump_flight_record(const std::string& path = "") const;

  // The backend of a device kind; throws InvalidArgument when the group has none.
  Backend& backend(DeviceKind device = DeviceKind::kCpu) const;

 private:
  friend std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options);
  class Impl;
  Work last_call(DeviceKind device) const;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Joins the job that the environment describes and makes its group the default one: RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun's and lockrun's), or Open MPI's variables under mpirun; with
// none of these, rank 0 of 1. Blocks until all ranks have come. Throws InvalidArgument for a broken environment and
// RendezvousError naming the address, or the ranks that are missing.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

// The default group: the latest that init_process_group() made in this thread, while it lives; in a thread that made
// none, the one that another thread of the process made; null: none did. InvalidArgument where several threads have one
// each (ranks that are threads).
std::shared_ptr<ProcessGroup> default_process_group();

}  // namespace lockstep
#pragma GCC visibility pop
