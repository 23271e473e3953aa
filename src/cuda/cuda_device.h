// A GPU as a device: streams, events, copies, a pool of memory.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "kernels/cuda/stream.h"
#include "lockstep/core/device.h"
#include "src/core/device/cuda_library.h"
#include "src/core/memory/pinned_allocator.h"
#include "src/core/memory/stream_allocator.h"

namespace lockstep::cuda {

// Makes it the thread's current device, permanently. Setting another one again, or calling CUDA in a thread that has
// set none, would create a context of hundreds of MiB for this process on a GPU that belongs to another rank.
void use_device(int ordinal);

class CudaStream : public Stream {
 public:
  CudaStream(int device, int priority);
  ~CudaStream() override;
  void synchronize() override;
  void* native() const
      override;  // makes its device the thread's current one, because the caller, possibly NCCL, is about to queue work
  bool is_capturing() const override;
  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }
  // Uses the device's allocator, which caches memory per stream. The allocator is notified when the stream is
  // destroyed, unless the stream `outlives` it.
  void take_scratch_from(StreamAllocator& allocator, bool outlives) { allocator_ = &allocator, outlives_ = outlives; }
  Buffer take_scratch(std::size_t bytes) { return allocator_->allocate_on(*this, bytes); }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  StreamAllocator* allocator_ = nullptr;
  bool outlives_ = true;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(int device);
  ~CudaEvent() override;
  void record(Stream& stream) override;
  void stream_wait(Stream& later) override;
  bool done() const override;
  void synchronize() override;

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

// The driver's stream-ordered pool; keeps freed memory.
class CudaPool : public MemoryPool {
 public:
  CudaPool(int device, CudaStream& stream);
  ~CudaPool() override;
  std::byte* take(std::size_t bytes) override { return take_on(stream_, bytes); }
  std::byte* take_apart(std::size_t bytes) override;
  void give_back(std::byte* block, std::size_t bytes) noexcept override { give_back_on(stream_, block, bytes); }
  std::byte* take_on(Stream& stream, std::size_t bytes) override;
  void give_back_on(Stream& stream, std::byte* block, std::size_t bytes) noexcept override;
  void settle(std::size_t keep) override;
  std::size_t held() const override;
  std::size_t free_on_device() const override;
  std::size_t size_of_device() const override;
  void open_for(int peer);  // lets that GPU read and write the pool's memory

 private:
  int device_;
  CudaStream& stream_;
  CudaStream apart_;  // never captured
  cudaMemPool_t pool_ = nullptr;
};

// Page-locked host memory, for every device of the process.
class CudaPinnedSource : public PinnedSource {
 public:
  explicit CudaPinnedSource(int device) : device_(device) {}
  std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* block) noexcept override;

 private:
  int device_;
};

// The captured work, ready to launch, and the memory that it uses.
class CudaGraph : public Graph {
 public:
  // Takes ownership of the captured graph, which launches do not need any more.
  CudaGraph(int device, cudaGraph_t captured, std::shared_ptr<void> memory);
  ~CudaGraph() override;
  void launch(Stream& stream) override;

 private:
  const int device_;
  std::shared_ptr<void> memory_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const Gpu& gpu, std::string name, const MemoryPolicy& policy);
  ~CudaDevice() override;
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int index() const override { return gpu_.ordinal; }
  std::string name() const override { return name_; }
  std::string identity() const override { return gpu_.uuid; }
  Buffer allocate(std::size_t bytes) override;
  AllocatorStats allocator_stats() const override { return allocator_->stats(); }
  void empty_cache() override { allocator_->empty_cache(); }
  void copy(void* destination, const void* source, std::size_t bytes, Stream& stream) override;
  void upload(void* destination, const void* source, std::size_t bytes, Stream& stream) override {
    uploader_.upload(destination, source, bytes, stream);
  }
  void begin_capture(Stream& stream) override;
  std::unique_ptr<Graph> end_capture(Stream& stream) override;
  Stream& default_stream() override { return default_stream_; }
  std::unique_ptr<Stream> new_stream() override;
  std::unique_ptr<Stream> new_priority_stream() override;
  std::unique_ptr<Event> new_event() override;
  const KernelTable& own_kernels() const override { return kernels_; }
  CudaPool& pool() { return pool_; }

 private:
  Buffer take_pinned(std::size_t bytes) override { return pinned_.allocate(bytes); }
  std::unique_ptr<Stream> stream_of(int priority);

  Gpu gpu_;
  const std::string name_;
  KernelTable kernels_;
  CudaStream default_stream_;
  CudaPool pool_;
  std::unique_ptr<StreamAllocator> allocator_;
  CudaPinnedSource pinned_source_;
  PinnedAllocator pinned_;
  Uploader uploader_;
};

}  // namespace lockstep::cuda
