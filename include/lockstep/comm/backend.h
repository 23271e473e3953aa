// The backend interface: the collectives on raw buffers. It is one of Lockstep's two extension points; Device is the
// other.
//
// A new backend is a folder below src/comm and a line in src/comm/backends.cpp; the conformance suite then tests it. A
// backend serves one process group. The group numbers the calls, checks the arguments and calls the backend in sequence
// order; the backend compares the ranks' signatures, moves the data and enforces the deadline.
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

// Bytes that this rank sent to its peers, by transport. Tests use them to prove which transport was used.
struct TransportCounters {
  std::uint64_t shared_memory_bytes = 0;  // read from peers' memory
  std::uint64_t tcp_bytes = 0;            // payload written to sockets
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;       // "host", "nccl", ...
  virtual std::string_view transport() const = 0;  // "shm", "tcp", ...
  // By default the row for name() in the table of src/comm/backends.cpp. A backend that is not in the table, or that
  // wraps another, overrides this.
  virtual const Capabilities& capabilities() const;

  // Runs the operation to its end in the calling thread. All operations issued before it have completed.
  virtual void run(const Operation& operation) = 0;
  // Queues the operation and returns. The operations of one backend execute in the order of the calls.
  virtual Work start(const Operation& operation) = 0;

  // Queues `operation.chained` (Work::then) after all operations issued so far, and returns.
  // src/comm/call/continuation.h runs it; the operation that it starts executes at this place, before those that are
  // issued later. If the continuation throws, the group ends on all ranks. The default, for a backend that has no
  // thread or stream to run it on, waits for `first` and runs it in the calling thread.
  virtual Work start_chained(const Operation& operation, const Work& first);

  // Returns when none of the operations and continuations issued so far is running or will run: they are complete, or
  // were dropped because the group has ended. It lets the owner of their memory free it after an exception has
  // destroyed their Works.
  virtual void await_idle() noexcept {}

  // Messages between two ranks. They have no number, and no order relative to the operations. Both calls return at
  // once, and the backend owns the data until the Work is done. A send is done when its data has left this rank, which
  // may be before the peer receives it. A backend without messages throws InvalidArgument.
  virtual Work send(const Message& message);
  virtual Work receive(const Message& message);

  // Returns zeroed, page-aligned memory on which collectives work in place, at the best speed. Collective: all ranks
  // request the same sizes in the same order (checked).
  virtual Buffer allocate(std::size_t bytes) = 0;

  // Returns the addresses at which this rank has mapped [data, data + bytes) of every rank, in rank order, if the range
  // lies in the memory of one allocate() call that all ranks have mapped. Otherwise, and by default, returns an empty
  // vector; also if LOCKSTEP_REDUCE_ORDER requires another order of summation than rank order, which callers that add
  // the values themselves would not follow. Callers separate their accesses from the peer's own by barriers. Makes no
  // call to other ranks. The addresses are valid while this rank keeps its Buffer.
  virtual std::vector<std::byte*> peer_addresses(const void* /*data*/, std::size_t /*bytes*/) const { return {}; }

  // Wakes all waiting threads of this group, on all ranks that can be reached; all later calls throw PeerLost with
  // `reason`.
  virtual void abort(const std::string& reason) = 0;

  // Throws the group's error if the group has ended, as the next call would; never blocks. The text begins with
  // `doing()`. Any thread may call it.
  virtual void throw_if_over(const std::function<std::string()>& /*doing*/) {}

  // Compares this call of all ranks, whose data another backend moves, and returns when all ranks have made it. Throws
  // what run() would throw: a mismatch, a lost peer, the deadline. No operation may be under way; messages may. Only
  // `host` implements it.
  virtual void compare(const Operation& operation);

  // -- GPU graphs. Between begin_capture() and end_capture(), start() adds an operation to the graph that the device's
  // default stream is recording: nothing runs, nothing is compared, and only stream_wait() of its Work may be called.
  // end_capture() returns a hash of the captured operations, which must be equal on all ranks. After each launch of the
  // graph on the default stream the group calls start_replay() with a kBarrier whose layout is that hash: it is
  // compared among the ranks, and is done when the device has finished. A backend whose operations run on the host
  // throws InvalidArgument.
  virtual void begin_capture();
  virtual std::uint64_t end_capture();
  virtual Work start_replay(const Operation& replay);

  // Announces that this rank needs nothing more from its peers, so that they do not count it as lost. The group's
  // destructor calls it once. Never throws, never waits for peers.
  virtual void leave() noexcept = 0;

  virtual TransportCounters counters() const = 0;

  // `call` runs once when the group ends, even if this rank is in no call: on any thread, until the backend's
  // destructor has returned. It must not call into the backend. A backend that detects failures only in its own calls
  // never runs it.
  virtual void on_over(std::function<void(const std::string& why)> /*call*/) {}
};

// Throws InvalidArgument if this process cannot use the backend called `name`: it is not in this build, supports only a
// world of one, needs another launcher, or lacks a GPU or a library. Makes no call to other ranks. `device` is this
// rank's; null means local_device().
void check_backend(std::string_view name, const Place& place, const Device* device = nullptr);

// Makes the backend called `name` ("host", ...; "ring" is the former name of "host"). Throws InvalidArgument if it is
// unknown, with the names that this build has, or not in this build, with the reason. Collective.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendContext& context);

}  // namespace lockstep
#pragma GCC visibility pop
