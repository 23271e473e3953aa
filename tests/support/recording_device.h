// A GPU simulated by threads, for machines without one: every stream is a thread with a queue, events and memory follow
// stream order as in CUDA, and the kernels are the CPU's reference kernels. It records all queued work, in the order of
// queueing, by stream.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "src/core/memory/stream_allocator.h"

namespace lockstep::testing {

// The object that a library which queues work on such streams gets for a cudaStream_t (see tests/nccl/stub_nccl.cpp).
class HostStream {
 public:
  virtual ~HostStream() = default;
  virtual void push(std::string what, std::function<void()> work) = 0;
  virtual bool is_recorded() const = 0;  // whether work that is pushed now becomes part of a graph
  virtual Buffer take_scratch(std::size_t bytes) = 0;
};

class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(int index = 0, std::size_t memory_bytes = std::size_t{1} << 30);
  ~RecordingDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int index() const override { return index_; }
  std::string name() const override { return "cuda:" + std::to_string(index_); }
  std::string identity() const override { return "GPU-recorded-" + std::to_string(index_); }
  Buffer allocate(std::size_t bytes) override;
  AllocatorStats allocator_stats() const override;
  void empty_cache() override;
  void copy(void* destination, const void* source, std::size_t bytes, Stream& stream) override;
  void upload(void* destination, const void* source, std::size_t bytes, Stream& stream) override;
  void begin_capture(Stream& stream) override;
  std::unique_ptr<Graph> end_capture(Stream& stream) override;
  Stream& default_stream() override;
  std::unique_ptr<Stream> new_stream() override;
  std::unique_ptr<Stream> new_priority_stream() override;
  std::unique_ptr<Event> new_event() override;
  const KernelTable& own_kernels() const override;

  // "stream 0: conv2d", "stream 1: wait", "stream 0: record", in the order in which the host queued them; "captured,
  // stream 0: conv2d" for work in a graph, "stream 0: graph" for its launch. A kernel on 16-bit floats is "mixed
  // conv2d". Stream 0 is the default one.
  std::vector<std::string> log() const;
  struct Counts {
    int host_waits = 0;            // for a stream or an event
    int captures = 0;              // that became graphs
    int launches = 0;              // of graphs
    int pool_calls = 0;            // of the driver's memory pool: allocations, frees, queries
    int allocation_nodes = 0;      // allocations in the order of a captured stream, which are part of the graph
    std::map<int, int> scratches;  // operators' workspaces, by stream
  };
  Counts counts() const;
  void clear_log();    // also resets the counts
  MemoryPool& pool();  // below the allocator
  // While it is held, work that is queued on the default stream later does not run: so tests see what waits for what.
  void hold_default_stream();
  void release_default_stream();

 private:
  Buffer take_pinned(std::size_t bytes) override;

  class Impl;
  int index_;
  std::unique_ptr<Impl> impl_;
};

// While it exists, such devices run these kernels, which queue their work themselves, instead of the reference kernels.
class RecordedDevicesCompute {
 public:
  explicit RecordedDevicesCompute(const KernelTable& kernels);
  ~RecordedDevicesCompute();
  RecordedDevicesCompute(const RecordedDevicesCompute&) = delete;
  RecordedDevicesCompute& operator=(const RecordedDevicesCompute&) = delete;
};

}  // namespace lockstep::testing
