// The device seam: memory, copies, streams, events and the kernel table. One of the two seams of Lockstep.
//
// Everything above this header is written once and runs on every device. Adding an operator: one kernel a device, one
// line in operators.def, and its cases for the tests, which run on every device present and compare with the CPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/buffer.h"
#include "lockstep/core/kernels.h"

#pragma GCC visibility push(default)
namespace lockstep {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// An ordered queue of a device's work. On the CPU every call has completed when it returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;                   // blocks until everything queued so far is done
  virtual void* native() const { return nullptr; }  // a GPU's: its cudaStream_t
  // Is what is queued on it now recorded instead of run? See Device::begin_capture.
  virtual bool is_capturing() const { return false; }
};

// A mark in a stream that another stream, or the host, can wait for.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void stream_wait(Stream& later) = 0;  // work queued on `later` from now on runs after the mark
  virtual bool done() const = 0;                // never blocks
  virtual void synchronize() = 0;               // blocks the host until the mark is reached
};

// The work that was queued between begin_capture() and end_capture(), to be queued again as a whole. Owns the device
// memory that was allocated meanwhile; memory that was there before is its users' to keep.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;  // never blocks; on the stream that was captured
};

// Counters of the device's caching allocator. After warm-up a training step must not raise system_allocations.
struct AllocatorStats {
  std::uint64_t system_allocations = 0;  // blocks asked from the system (malloc, cudaMalloc)
  std::uint64_t cache_hits = 0;          // allocations served from freed blocks
  std::size_t bytes_in_use = 0;          // handed out now
  std::size_t bytes_held = 0;            // in use + cached
};

struct DeviceOptions;

// A device of this process. Devices live as long as the process; pass them by reference. All members are thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  // One physical device as several, see core/logical_devices.h: Device::configure({.cpu = 2}). Before the first use of
  // what it changes (a tensor or a process group for the CPU), InvalidArgument otherwise; several calls add up, and add
  // to LOCKSTEP_LOGICAL_DEVICES.
  static void configure(const DeviceOptions& options);

  virtual DeviceKind kind() const = 0;
  virtual int index() const = 0;         // 0 on the CPU (its number among logical ones), the CUDA ordinal on a GPU
  virtual std::string name() const = 0;  // "cpu", "cuda:0", of logical devices "cpu:1", "cuda:0/1"
  // Tells physical devices apart, across processes and machines: a GPU's UUID.
  virtual std::string identity() const { return name(); }

  // Uninitialised memory, aligned to 64 bytes at least, from a caching allocator; 0 bytes give a valid empty buffer.
  // Throws Error when the memory is exhausted (asked, held, free).
  virtual Buffer allocate(std::size_t bytes) = 0;
  virtual AllocatorStats allocator_stats() const = 0;
  // Gives freed blocks that the allocator keeps back to the system: after much of a size that is not asked for again. A
  // GPU is waited for.
  virtual void empty_cache() {}

  // Host memory that the device reads and writes by itself (pinned), from a cache, and slow to make anew; ordinary
  // memory on the CPU. Its Buffer is of the CPU. Before it is freed, the owner must see to it that no copy from or to
  // it is under way.
  Buffer allocate_pinned(std::size_t bytes);

  // Copies `bytes`, ordered on `stream`; the ranges must not overlap. Blocks on the CPU; on a GPU only from or to host
  // memory that is not pinned, and maybe there: pinned memory must stay as it is until the stream has come to the copy.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream& stream) = 0;
  // Copies from any host memory, ordered on `stream`; the source may change as soon as it returns. Waits for the copy
  // only where megabytes are copied at once. Throws InvalidArgument while the stream is captured: a graph would repeat
  // these very bytes.
  virtual void upload(void* destination, const void* source, std::size_t bytes, Stream& stream) = 0;

  virtual Stream& default_stream() = 0;
  virtual std::unique_ptr<Stream> new_stream() = 0;
  // Its work goes first where that of both streams could run: for communication beside computation.
  virtual std::unique_ptr<Stream> new_priority_stream() { return new_stream(); }
  virtual std::unique_ptr<Event> new_event() = 0;

  // Graphs: what is queued on `stream` from now on, and on streams that events order behind it, is recorded and not
  // run, until end_capture(); by then events must have ordered `stream` behind all of those again. Meanwhile the host
  // cannot wait for any of it, and what the calling thread allocates stays the graph's. One capture at a time; both
  // calls by one thread. Throws InvalidArgument on a device without graphs (the CPU); end_capture() throws Error, and
  // the capture is over, when what was queued makes no graph.
  virtual void begin_capture(Stream& stream) = 0;
  virtual std::unique_ptr<Graph> end_capture(Stream& stream) = 0;

  // The operators of this device, see kernels.h.
  virtual const KernelTable& kernels() const = 0;

 private:
  virtual Buffer take_pinned(std::size_t bytes) = 0;
};

// The host's processor: always there. Of several logical ones the first.
Device& cpu_device();

// The device of this rank: the GPU of `local_rank` when CUDA is built in and present, else the CPU.
Device& local_device(int local_rank);

}  // namespace lockstep
#pragma GCC visibility pop
