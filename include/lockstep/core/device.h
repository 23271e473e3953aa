// The interface of devices: memory, copies, streams, events and the kernel table.
//
// All code above this header is written once and runs on every device. A new operator needs one kernel per device, one
// line in operators.def, and test cases, which run on every device present and compare it with the CPU.
#pragma once

#include <atomic>
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
  virtual void synchronize() = 0;                   // blocks until all queued work is done
  virtual void* native() const { return nullptr; }  // on a GPU: the cudaStream_t
  // True while work queued on the stream is recorded instead of run; see Device::begin_capture.
  virtual bool is_capturing() const { return false; }
};

// A mark in a stream, for which another stream or the host can wait.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void stream_wait(Stream& later) = 0;  // work queued on `later` from now on runs after the mark
  virtual bool done() const = 0;                // never blocks
  virtual void synchronize() = 0;               // blocks the host until the mark is reached
};

// The work that was queued between begin_capture() and end_capture(), which can be launched again as a unit. Owns the
// device memory that was allocated during the capture; memory from before must be kept by its users.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;  // never blocks; the stream must be the captured one
};

// Counters of the device's caching allocator. After warm-up a training step must not raise system_allocations.
struct AllocatorStats {
  std::uint64_t system_allocations = 0;  // blocks requested from the system (malloc, cudaMalloc)
  std::uint64_t cache_hits = 0;          // allocations served from freed blocks
  std::size_t bytes_in_use = 0;          // in use by callers
  std::size_t bytes_held = 0;            // in use + cached
};

struct DeviceOptions;

// A device of this process. Devices live as long as the process; pass them by reference. All members are thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  // Divides a physical device into several logical ones, see core/logical_devices.h: Device::configure({.cpu = 2}).
  // Must be called before the first use of the affected devices (a tensor or a process group for the CPU); throws
  // InvalidArgument otherwise. Several calls add up, also with LOCKSTEP_LOGICAL_DEVICES.
  static void configure(const DeviceOptions& options);

  virtual DeviceKind kind() const = 0;
  virtual int index() const = 0;         // the CUDA ordinal on a GPU; on the CPU 0, or the number of the logical device
  virtual std::string name() const = 0;  // "cpu", "cuda:0"; for logical devices "cpu:1", "cuda:0/1"
  // Identifies the physical device across processes and machines: a GPU's UUID.
  virtual std::string identity() const { return name(); }

  // Uninitialised memory, aligned to at least 64 bytes, from a caching allocator; 0 bytes give a valid empty buffer.
  // Throws Error if the memory is exhausted; the message has the requested, held and free sizes.
  virtual Buffer allocate(std::size_t bytes) = 0;
  virtual AllocatorStats allocator_stats() const = 0;
  // Returns the allocator's cached blocks to the system, for example when sizes will not be used again. Waits for a
  // GPU.
  virtual void empty_cache() {}

  // Pinned host memory, which the device can read and write directly; it is cached because it is slow to allocate. On
  // the CPU, ordinary memory. The Buffer belongs to the CPU device. The owner must make sure that no copy from or to it
  // is running when it is freed.
  Buffer allocate_pinned(std::size_t bytes);

  // Copies `bytes`, ordered on `stream`; the ranges must not overlap. Blocks on the CPU. On a GPU it may block only if
  // the host memory is not pinned; pinned memory must stay unchanged until the stream has executed the copy.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream& stream) = 0;
  // Copies from any host memory, ordered on `stream`; the source may change as soon as the call returns. Waits for the
  // copy only if it has megabytes. Throws InvalidArgument while the stream is captured, because a graph would repeat
  // the same bytes.
  virtual void upload(void* destination, const void* source, std::size_t bytes, Stream& stream) = 0;

  virtual Stream& default_stream() = 0;
  virtual std::unique_ptr<Stream> new_stream() = 0;
  // A stream whose work is scheduled before that of other streams; for communication during computation.
  virtual std::unique_ptr<Stream> new_priority_stream() { return new_stream(); }
  virtual std::unique_ptr<Event> new_event() = 0;

  // Graphs. From now until end_capture(), work queued on `stream`, and on streams that events make wait for it, is
  // recorded and not run. Before end_capture(), `stream` must wait, by events, for all of those streams. During the
  // capture the host cannot wait for any of this work, and memory that the calling thread allocates belongs to the
  // graph. Only one capture runs at a time, and one thread makes both calls. Throws InvalidArgument on a device without
  // graphs (the CPU). end_capture() throws Error, and ends the capture, if the queued work cannot form a graph.
  virtual void begin_capture(Stream& stream) = 0;
  virtual std::unique_ptr<Graph> end_capture(Stream& stream) = 0;

  // The operators of this device (kernels.h), or the table of an observer that stands in front of them.
  const KernelTable& kernels() const {
    const KernelTable* const observer = observer_.load(std::memory_order_acquire);
    return observer == nullptr ? own_kernels() : *observer;
  }
  virtual const KernelTable& own_kernels() const = 0;
  // From now on kernels() is this table, whose functions call those of own_kernels(); null ends that. The table stays
  // alive while it is in use: calls that run meanwhile may still use the table before.
  void observe_kernels(const KernelTable* observer) { observer_.store(observer, std::memory_order_release); }

 private:
  virtual Buffer take_pinned(std::size_t bytes) = 0;

  std::atomic<const KernelTable*> observer_ = nullptr;
};

// The CPU, which always exists. If it is divided into logical devices: the first.
Device& cpu_device();

// The device of this rank: the GPU `local_rank` if Lockstep was built with CUDA and a GPU is present, else the CPU.
Device& local_device(int local_rank);

}  // namespace lockstep
#pragma GCC visibility pop
