#include "src/cuda/cuda_device.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/families.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/cuda/peer_access.h"

namespace lockstep::cuda {

void use_device(int ordinal) {
  int current = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&current));
  if (current != ordinal) LOCKSTEP_CUDA(cudaSetDevice(ordinal));
}

namespace {

// At the end of a process the driver may be gone; then the memory is left to it.
void use_device_to_free(int ordinal) noexcept { cudaSetDevice(ordinal); }

}  // namespace

// Separate from CUDA's default stream, which would wait for all others.
CudaStream::CudaStream(int device, int priority) : device_(device) {
  use_device(device_);
  LOCKSTEP_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
}
CudaStream::~CudaStream() {
  use_device_to_free(device_);
  if (!outlives_) allocator_->forget(*this);
  cudaStreamDestroy(stream_);
}
bool CudaStream::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  use_device(device_);
  LOCKSTEP_CUDA(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}
void CudaStream::synchronize() {
  // CUDA would end the capture with a less helpful error.
  if (is_capturing())
    throw InvalidArgument("cuda:{}: the host cannot wait for work that is recorded as a graph: nothing of it has run",
                          device_);
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream_));
}

void* CudaStream::native() const {
  use_device(device_);
  return stream_;
}

Buffer take_scratch(Stream& stream, std::size_t bytes) { return static_cast<CudaStream&>(stream).take_scratch(bytes); }
cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

CudaEvent::CudaEvent(int device) : device_(device) {
  use_device(device_);
  LOCKSTEP_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
}
CudaEvent::~CudaEvent() {
  use_device_to_free(device_);
  cudaEventDestroy(event_);
}
void CudaEvent::record(Stream& stream) { LOCKSTEP_CUDA(cudaEventRecord(event_, native(stream))); }
void CudaEvent::stream_wait(Stream& later) { LOCKSTEP_CUDA(cudaStreamWaitEvent(native(later), event_, 0)); }
bool CudaEvent::done() const {
  use_device(device_);
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // clears this thread's last error, for which the next kernel's launch would be blamed
    return false;
  }
  LOCKSTEP_CUDA(state);
  return true;
}
void CudaEvent::synchronize() {
  use_device(device_);
  LOCKSTEP_CUDA(cudaEventSynchronize(event_));
}

CudaPool::CudaPool(int device, CudaStream& stream) : device_(device), stream_(stream), apart_(device, 0) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  LOCKSTEP_CUDA(cudaMemPoolCreate(&pool_, &properties));
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  LOCKSTEP_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  LOCKSTEP_CUDA(cudaDeviceSetMemPool(device, pool_));  // libraries that request memory from the driver use it as well
}
CudaPool::~CudaPool() { cudaMemPoolDestroy(pool_); }

std::byte* CudaPool::take_on(Stream& stream, std::size_t bytes) {
  use_device(device_);
  void* block = nullptr;
  const cudaError_t result = cudaMallocFromPoolAsync(&block, bytes, pool_, native(stream));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is reported: later calls must not find it
    return nullptr;
  }
  LOCKSTEP_CUDA(result);
  return static_cast<std::byte*>(block);
}

// Waiting makes the block usable by everybody: the driver may have made it wait for earlier uses of its memory.
std::byte* CudaPool::take_apart(std::size_t bytes) {
  std::byte* const block = take_on(apart_, bytes);
  if (block != nullptr) apart_.synchronize();
  return block;
}

void CudaPool::give_back_on(Stream& stream, std::byte* block, std::size_t) noexcept {
  use_device_to_free(device_);
  cudaFreeAsync(block, static_cast<CudaStream&>(stream).get());
}

void CudaPool::settle(std::size_t keep) {
  stream_.synchronize();
  LOCKSTEP_CUDA(cudaMemPoolTrimTo(pool_, keep));
}

std::size_t CudaPool::held() const {
  use_device(device_);
  std::uint64_t bytes = 0;
  LOCKSTEP_CUDA(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes));
  return bytes;
}

std::size_t CudaPool::free_on_device() const {
  use_device(device_);
  std::size_t free = 0, total = 0;
  LOCKSTEP_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

void CudaPool::open_for(int peer) {
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, peer};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  use_device(device_);
  LOCKSTEP_CUDA(cudaMemPoolSetAccess(pool_, &access, 1));
}

std::size_t CudaPool::size_of_device() const {
  use_device(device_);
  std::size_t free = 0, total = 0;
  LOCKSTEP_CUDA(cudaMemGetInfo(&free, &total));
  return total;
}

std::byte* CudaPinnedSource::take(std::size_t bytes) {
  use_device(device_);
  void* block = nullptr;
  const cudaError_t result = cudaHostAlloc(&block, bytes, cudaHostAllocPortable);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  LOCKSTEP_CUDA(result);
  return static_cast<std::byte*>(block);
}
void CudaPinnedSource::give_back(std::byte* block) noexcept {
  use_device_to_free(device_);
  cudaFreeHost(block);
}

// Nodes keep the priority of the stream from which they were captured, so communication has priority in a graph as
// well.
CudaGraph::CudaGraph(int device, cudaGraph_t captured, std::shared_ptr<void> memory)
    : device_(device), memory_(std::move(memory)) {
  use_device(device);
  const cudaError_t result = cudaGraphInstantiate(&executable_, captured, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(captured);
  LOCKSTEP_CUDA(result);
}
CudaGraph::~CudaGraph() {
  use_device_to_free(device_);
  cudaGraphExecDestroy(executable_);
}
void CudaGraph::launch(Stream& stream) { LOCKSTEP_CUDA(cudaGraphLaunch(executable_, native(stream))); }

namespace {

// The GPUs that this process uses.
struct UsedGpus {
  std::mutex mutex;
  std::vector<CudaDevice*> devices;
  std::atomic<bool> are_several{false};
};
UsedGpus& used_gpus() {
  static auto* const gpus = new UsedGpus;  // devices may be destroyed after static objects
  return *gpus;
}

class DriverPeerCalls : public PeerCalls {
 public:
  explicit DriverPeerCalls(const std::vector<CudaDevice*>& devices) : devices_(devices) {}
  bool enable(int device, int peer) override {
    int can = 0;
    LOCKSTEP_CUDA(cudaDeviceCanAccessPeer(&can, device, peer));
    if (can == 0) return false;
    use_device(device);
    const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled || result == cudaErrorTooManyPeers) {
      cudaGetLastError();  // clears the error, for which the next kernel's launch would be blamed
      return result == cudaErrorPeerAccessAlreadyEnabled;
    }
    LOCKSTEP_CUDA(result);
    return true;
  }
  void open_pool(int owner, int peer) override {
    for (CudaDevice* const device : devices_)
      if (device->index() == owner) device->pool().open_for(peer);
  }

 private:
  const std::vector<CudaDevice*>& devices_;
};

// Collects the device among those that this process uses, and connects it with the others.
void use_together(CudaDevice& fresh) {
  UsedGpus& used = used_gpus();
  const std::lock_guard lock(used.mutex);
  std::vector<int> others;
  for (const CudaDevice* const device : used.devices)
    if (device->index() != fresh.index()) others.push_back(device->index());
  std::vector<CudaDevice*> all = used.devices;
  all.push_back(&fresh);
  DriverPeerCalls calls(all);
  for (const int other : connect_peers(calls, fresh.index(), others))
    log::info("cuda:{} and cuda:{} cannot address each other's memory: copies between them go through the host",
              fresh.index(), other);
  use_device(fresh.index());
  used.devices = std::move(all);  // last: the constructor that calls this may still have failed
  used.are_several = !others.empty();
}

// The number of the device that owns the memory, -1 for the host's.
int device_of(const void* memory) {
  cudaPointerAttributes attributes{};
  LOCKSTEP_CUDA(cudaPointerGetAttributes(&attributes, memory));
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

}  // namespace

CudaDevice::CudaDevice(const Gpu& gpu, std::string name, const MemoryPolicy& policy)
    : gpu_(gpu),
      name_(std::move(name)),
      kernels_(cuda_kernels()),
      default_stream_(gpu.ordinal, 0),
      pool_(gpu.ordinal, default_stream_),
      pinned_source_(gpu.ordinal),
      pinned_(*this, pinned_source_),
      uploader_(*this, pinned_) {
  allocator_ = std::make_unique<StreamAllocator>(*this, pool_, policy);
  default_stream_.take_scratch_from(*allocator_, /*outlives=*/true);
  use_together(*this);
}

CudaDevice::~CudaDevice() {
  UsedGpus& used = used_gpus();
  const std::lock_guard lock(used.mutex);
  std::erase(used.devices, this);
}

Buffer CudaDevice::allocate(std::size_t bytes) { return allocator_->allocate(bytes); }

void CudaDevice::copy(void* destination, const void* source, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  const cudaStream_t queue = native(stream);
  if (used_gpus().are_several) {
    const int from = device_of(source), to = device_of(destination);
    if (from >= 0 && to >= 0 && from != to) {  // direct, or through the host if the GPUs are not connected
      LOCKSTEP_CUDA(cudaMemcpyPeerAsync(destination, to, source, from, bytes, queue));
      return;
    }
  }
  LOCKSTEP_CUDA(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, queue));
}

// Relaxed: during the capture, libraries and other threads may allocate memory and query the driver.
void CudaDevice::begin_capture(Stream& stream) {
  const cudaStream_t queue = native(stream);
  allocator_->begin_capture();
  const cudaError_t result = cudaStreamBeginCapture(queue, cudaStreamCaptureModeRelaxed);
  if (result != cudaSuccess) allocator_->end_capture();
  LOCKSTEP_CUDA(result);
}

std::unique_ptr<Graph> CudaDevice::end_capture(Stream& stream) {
  cudaGraph_t captured = nullptr;
  const cudaError_t result = cudaStreamEndCapture(native(stream), &captured);
  std::shared_ptr<void> memory = allocator_->end_capture();
  if (result != cudaSuccess && captured != nullptr) cudaGraphDestroy(captured);
  LOCKSTEP_CUDA(result);
  return std::make_unique<CudaGraph>(gpu_.ordinal, captured, std::move(memory));
}

std::unique_ptr<Stream> CudaDevice::stream_of(int priority) {
  auto stream = std::make_unique<CudaStream>(gpu_.ordinal, priority);
  stream->take_scratch_from(*allocator_, /*outlives=*/false);
  return stream;
}
std::unique_ptr<Stream> CudaDevice::new_stream() { return stream_of(0); }
std::unique_ptr<Stream> CudaDevice::new_priority_stream() {
  use_device(gpu_.ordinal);
  int least = 0, greatest = 0;
  LOCKSTEP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return stream_of(greatest);
}
std::unique_ptr<Event> CudaDevice::new_event() { return std::make_unique<CudaEvent>(gpu_.ordinal); }

}  // namespace lockstep::cuda
