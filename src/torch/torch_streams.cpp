#include "src/torch/torch_streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace lockstep {

namespace {

// Through c10's table of devices, so that nothing here needs the libraries of torch's CUDA part.
c10::Stream current_stream(at::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

class TorchStream : public Stream {
 public:
  explicit TorchStream(c10::Stream stream) : stream_(stream) {}
  void synchronize() override { stream_.synchronize(); }
  void* native() const override { return stream_.native_handle(); }

 private:
  const c10::Stream stream_;
};

}  // namespace

TorchStreams::TorchStreams(Device& device, at::Device tensors) : device_(device), tensors_(tensors) {
  if (tensors.is_cuda()) event_ = device.new_event();
}

// The guard's device is that of torch's default stream, which has no handle of its own, and is the current one again
// afterwards.
void TorchStreams::order(bool torch_first) {
  if (!event_) return;
  const c10::DeviceGuard guard(tensors_);
  TorchStream torch(current_stream(tensors_));
  Stream &ours = device_.default_stream(), &first = torch_first ? torch : ours, &later = torch_first ? ours : torch;
  const std::lock_guard lock(mutex_);
  event_->record(first);
  event_->stream_wait(later);
}

void TorchStreams::ours_after_torch() { order(/*torch_first=*/true); }
void TorchStreams::torch_after_ours() { order(/*torch_first=*/false); }

bool TorchStreams::is_capturing() const {
  return event_ && c10::impl::getDeviceGuardImpl(tensors_.type())->isStreamCapturing(current_stream(tensors_));
}

void TorchStreams::release(Buffer memory) noexcept {
  if (!event_) return;
  try {
    const c10::DeviceGuard guard(tensors_);
    ours_after_torch();
    memory = Buffer();
  } catch (const std::exception&) {  // at the end of the process, when the driver is gone
  }
}

}  // namespace lockstep
