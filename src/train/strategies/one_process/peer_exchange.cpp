#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "src/train/strategies/one_process/gradient_exchange.h"

namespace lockstep::train {

namespace {

// All gradients of a device are in one piece of memory.
struct PeerGradients {
  Tensor gradients, sum, from_peer;  // the last two: as large as a part
};

class PeerExchange : public GradientExchange {
 public:
  explicit PeerExchange(DeviceCopies& copies) : copies_(copies) {
    for (const NamedTensor& parameter : copies_[0].parameters) total_ += whole_lines(parameter.tensor.count());
    part_ = whole_lines((total_ + copies_.count() - 1) / copies_.count());
    for (int i = 0; i < copies_.count(); ++i) lay_out(copies_[i]);
  }

  void finish(int copy) override { copies_[copy].device->default_stream().synchronize(); }  // others read its gradients

  void settle() override {
    copies_.zero_missing_gradients();
    if (copies_.count() == 1) return;
    copies_.run([this](int copy) { reduce_part(copy); });
    copies_.run([this](int copy) { gather_parts(copy); });
    count_bytes();
  }

 private:
  void lay_out(const Replica& copy) {
    all_.push_back({.gradients = Tensor::zeros({total_}, DType::kFloat32, *copy.device),
                    .sum = Tensor::empty({part_}, DType::kFloat32, *copy.device),
                    .from_peer = Tensor::empty({part_}, DType::kFloat32, *copy.device)});
    std::int64_t begin = 0;
    for (const NamedTensor& parameter : copy.parameters) {
      bind_grad(parameter.tensor, floats_of(all_.back().gradients, begin, parameter.tensor.count()).buffer());
      begin += whole_lines(parameter.tensor.count());
    }
  }

  // Part `part` of the gradients of copy `copy`; the last ones may be shorter, or empty.
  Tensor part_of(int copy, int part) const {
    const std::int64_t begin = std::min(part * part_, total_), end = std::min(begin + part_, total_);
    return floats_of(all_[static_cast<std::size_t>(copy)].gradients, begin, end - begin);
  }

  // Puts the mean of all copies' gradients into this copy's part of its own.
  void reduce_part(int own) {
    const PeerGradients& here = all_[static_cast<std::size_t>(own)];
    const Tensor part = part_of(own, own), sum = floats_of(here.sum, 0, part.count());
    const Tensor from_peer = floats_of(here.from_peer, 0, part.count());
    Device& device = *copies_[own].device;
    sum.copy_from(part_of(0, own));
    for (int i = 1; i < copies_.count(); ++i) {
      if (i != own) from_peer.copy_from(part_of(i, own));
      device.kernels().add(sum, i == own ? part : from_peer, sum, device.default_stream());
    }
    device.kernels().scale(sum, 1 / static_cast<float>(copies_.count()), part, device.default_stream());
    device.default_stream().synchronize();
  }

  void gather_parts(int own) {
    for (int i = 0; i < copies_.count(); ++i)
      if (i != own) part_of(own, i).copy_from(part_of(i, i));
    copies_[own].device->default_stream().synchronize();
  }

  // From each device to each other one: what is added there, and the means.
  void count_bytes() {
    for (int to = 0; to < copies_.count(); ++to)
      for (int from = 0; from < copies_.count(); ++from)
        copies_.traffic().add(*copies_[from].device, *copies_[to].device,
                              part_of(from, to).bytes() + part_of(from, from).bytes());
  }

  DeviceCopies& copies_;
  std::vector<PeerGradients> all_;     // by copy
  std::int64_t total_ = 0, part_ = 0;  // floats: of all gradients, and of the part that a device adds
};

}  // namespace

std::unique_ptr<GradientExchange> make_peer_exchange(DeviceCopies& copies) {
  return std::make_unique<PeerExchange>(copies);
}

}  // namespace lockstep::train
