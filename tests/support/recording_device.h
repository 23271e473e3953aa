// A GPU made of threads, for machines without one: every stream is a thread that works off a queue, events and memory
// follow the order of streams as CUDA's do, kernels are the plain CPU kernels. It keeps a list of all that was queued,
// in the order of queueing, by stream.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "src/core/memory/stream_allocator.h"

namespace lockstep::testing {

// What a library that queues work on streams of this kind gets for a cudaStream_t (see tests/nccl/stub_nccl.cpp).
class HostStream {
 public:
  virtual ~HostStream() = default;
  virtual void push(std::string what, std::function<void()> work) = 0;
  virtual bool is_recorded() const = 0;  // is what is pushed now part of a graph?
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
  const KernelTable& kernels() const override;

  // "stream 0: conv2d", "stream 1: wait", "stream 0: record": by the order in which the host queued it; "captured,
  // stream 0: conv2d" what went into a graph instead, "stream 0: graph" its launch. A kernel on 16-bit floats is "mixed
  // conv2d". Streams count from 0, the default one.
  std::vector<std::string> log() const;
  struct Counts {
    int host_waits = 0;            // for a stream or an event
    int captures = 0;              // that became graphs
    int launches = 0;              // of graphs
    int pool_calls = 0;            // of the driver's memory pool: to take, to give back, to ask
    int allocation_nodes = 0;      // memory that was taken in the order of a captured stream: a part of the graph
    std::map<int, int> scratches;  // operators' workspaces, by stream
  };
  Counts counts() const;
  void clear_log();    // and counts
  MemoryPool& pool();  // below the allocator
  // While it is held, nothing that was queued on the default stream later runs: how tests see who waits for whom.
  void hold_default_stream();
  void release_default_stream();

 private:
  Buffer take_pinned(std::size_t bytes) override;

  class Impl;
  int index_;
  std::unique_ptr<Impl> impl_;
};

// While it lives, the kernels that such devices run are these, which queue their work themselves, not the plain ones.
class RecordedDevicesCompute {
 public:
  explicit RecordedDevicesCompute(const KernelTable& kernels);
  ~RecordedDevicesCompute();
  RecordedDevicesCompute(const RecordedDevicesCompute&) = delete;
  RecordedDevicesCompute& operator=(const RecordedDevicesCompute&) = delete;
};

}  // namespace lockstep::testing
