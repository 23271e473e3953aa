#include "src/torch/torch_streams.h"

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

void TorchStreams::ours_after_torch() {
  if (!event_) return;
  TorchStream stream(current_stream(tensors_));
  event_->record(stream);
  event_->stream_wait(device_.default_stream());
}

void TorchStreams::torch_after_ours() {
  if (!event_) return;
  TorchStream stream(current_stream(tensors_));
  event_->record(device_.default_stream());
  event_->stream_wait(stream);
}

// The stream that waits for a captured one is captured itself.
bool TorchStreams::is_capturing() const { return event_ && device_.default_stream().is_capturing(); }

}  // namespace lockstep
