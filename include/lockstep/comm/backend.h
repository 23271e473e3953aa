// The backend seam: the collectives on raw buffers. The other of Lockstep's two seams.
//
// Adding a backend: one folder below src/comm, one line in src/comm/backends.cpp, and the conformance suite runs over
// it. A backend is used by one process group. The group numbers the calls, checks the arguments and calls the backend
// in sequence order; a backend compares the ranks' signatures, moves the data, keeps the deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/capabilities.h"
#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/buffer.h"
#include "lockstep/core/place.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Device;
struct BackendContext;  // backend_context.h

// Bytes that this rank sent to peers, by the wire they took. Tests use them to prove which wire was used.
struct TransportCounters {
  std::uint64_t shared_memory_bytes = 0;  // read from peers' memory
  std::uint64_t tcp_bytes = 0;            // payload written to sockets
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;       // "host", "nccl", ...
  virtual std::string_view transport() const = 0;  // "shm", "tcp", ...
  // The table's line for name(); a backend that is not in the table, or wraps another, says it itself.
  virtual const Capabilities& capabilities() const;

  // Runs the operation to its end in the calling thread. Everything issued before has completed first.
  virtual void run(const Operation& operation) = 0;
  // Queues it and returns. Operations of one backend execute in the order of the calls.
  virtual Work start(const Operation& operation) = 0;

  // Queues `operation.chained` (Work::then) behind all operations issued so far, and returns.
  // src/comm/call/continuation.h runs it; the operation that it starts takes its place, before what is issued later.
  // Where it throws, the group is over on all ranks. A backend without a thread or stream for it waits for `first` and
  // runs it in the calling thread: so by default.
  virtual Work start_chained(const Operation& operation, const Work& first);

  // Returns when none of the operations and continuations issued so far is being executed, and none will be: complete,
  // or dropped as the group is over. For an owner of memory that they use, who lost their Works to an exception.
  virtual void await_idle() noexcept {}

  // Messages between two ranks: not in the order of the operations, not numbered. Both return at once; the data is the
  // backend's until the Work is done. A send completes when its data has left, maybe before it is received. A backend
  // without messages throws InvalidArgument.
  virtual Work send(const Message& message);
  virtual Work receive(const Message& message);

  // Memory that collectives work on in place, at the best speed. Collective: all ranks ask for the same bytes in the
  // same order (checked). Zeroed, aligned to a page.
  virtual Buffer allocate(std::size_t bytes) = 0;

  // Where this rank sees [data, data + bytes) of each rank, by rank, when that lies in one allocate()'s memory and all
  // ranks have mapped each other's. Else empty: so by default, and where LOCKSTEP_REDUCE_ORDER asks for sums in another
  // order than the ranks', which who adds up by himself would not keep. Who reads or writes a peer's memory parts it by
  // barriers from the peer's own use. Asks no other rank. Valid while this rank keeps its Buffer.
  virtual std::vector<std::byte*> peer_addresses(const void* /*data*/, std::size_t /*bytes*/) const { return {}; }

  // Wakes every waiter of this group, on all ranks that can be reached; all later calls throw PeerLost with `reason`.
  virtual void abort(const std::string& reason) = 0;

  // Throws the reason if the group is over, as the next call would; never waits. `doing` begins the text. From any
  // thread.
  virtual void throw_if_over(const std::function<std::string()>& /*doing*/) {}

  // Returns when all ranks have made this call, whose data another backend moves; throws what run() would: a mismatch,
  // a peer that is lost, the deadline. Beside messages, with no operation under way. Only `host` has it.
  virtual void compare(const Operation& operation);

  // -- graphs of a GPU. Between the first two calls start() puts an operation into the graph that the device's default
  // stream records: nothing runs and nothing is compared, and of its Work only stream_wait() is of use. Returns a hash
  // of the part on which all ranks' graphs must agree. After each launch of the graph on the default stream,
  // start_replay() with a kBarrier whose layout that is: it is compared, and done when the device is. A backend whose
  // operations run on the host throws InvalidArgument.
  virtual void begin_capture();
  virtual std::uint64_t end_capture();
  virtual Work start_replay(const Operation& replay);

  // Announces that this rank needs nothing more from its peers; called once by the group's destructor. Never throws,
  // never waits for peers: a rank that has finished is not lost.
  virtual void leave() noexcept = 0;

  virtual TransportCounters counters() const = 0;

  // `call` runs once when the group is over, also when no call of this rank is under way: from any thread, until the
  // backend's destructor has returned. It must not call into the backend. A backend that learns of a failure only in
  // its own calls never runs it.
  virtual void on_over(std::function<void(const std::string& why)> /*call*/) {}
};

// Throws InvalidArgument when this process cannot use the backend called `name`: not built in, made for a world of one,
// not started as it needs, without a GPU or the library. Asks no other rank. `device`: this rank's; null:
// local_device().
void check_backend(std::string_view name, const Place& place, const Device* device = nullptr);

// Makes the backend called `name` ("host", ...; "ring", its former name, is understood); throws InvalidArgument that
// lists the ones built in, or says what this build lacks. Collective.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendContext& context);

}  // namespace lockstep
#pragma GCC visibility pop
