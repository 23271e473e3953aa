#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/reduce/reducer.h"
#include "src/autograd/engine/variable_state.h"
#include "src/comm/threads/thread_group.h"
#include "src/core/base/message_text.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/train/strategies/one_process/gradient_exchange.h"

namespace lockstep::train {

namespace {

std::vector<Device*> devices_of(const DeviceCopies& copies) {
  std::vector<Device*> devices;
  for (int i = 0; i < copies.count(); ++i) devices.push_back(copies[i].device);
  return devices;
}

std::vector<GradientInfo> gradient_infos(const Replica& copy) {
  std::vector<GradientInfo> gradients;
  for (const auto& [name, tensor] : copy.parameters)
    gradients.push_back({name, static_cast<std::size_t>(tensor.count()), tensor.dtype(), tensor.device().kind(), false,
                         tensor.shape()});
  return gradients;
}

// A copy's part: its rank in the group, its buckets, and the hooks that mark gradients ready. Made and used on the
// copy's thread.
class CopyBuckets {
 public:
  CopyBuckets(ThreadGroup& threads, int number, Replica& copy) : copy_(copy), group_(threads.join(number)) {
    try {
      reducer_ = std::make_unique<Reducer>(group_, gradient_infos(copy));
    } catch (...) {  // the others would wait for this one's buckets
      group_->abort(exception_text(std::current_exception()));
      throw;
    }
    for (std::size_t i = 0; i < copy.parameters.size(); ++i) {
      const Tensor& parameter = copy.parameters[i].tensor;
      bind_grad(parameter, memory_on(parameter.device(), reducer_->slot(i)));
      hooks_.push_back(register_last_grad_hook(parameter, [this, i](const Tensor&) {
        if (is_in_step_) reducer_->mark_ready(i);
      }));
    }
  }

  void begin() { is_in_step_ = true; }
  void finish() {
    is_in_step_ = false;
    missing_ = reducer_->finish();
  }
  void stop(const std::string& reason) {
    is_in_step_ = false;
    group_->abort(reason);
    reducer_->abandon_pass();
  }

  // The gradients that this copy's last backward did not reach.
  const std::vector<std::size_t>& missing() const { return missing_; }
  std::vector<std::size_t> arrival_order() const {
    return {reducer_->arrival_order().begin(), reducer_->arrival_order().end()};
  }
  void rebuild(const std::vector<std::size_t>& order) {
    reducer_->rebuild(order, [this](std::size_t i, const Buffer& slot) {
      const Tensor& parameter = copy_.parameters[i].tensor;
      grad(parameter).rebind(memory_on(parameter.device(), slot));
    });
  }
  std::uint64_t bytes() const {
    std::uint64_t all = 0;
    for (const BucketLayout& bucket : reducer_->buckets()) all += bucket.bytes;
    return all;
  }

 private:
  Replica& copy_;
  const std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<HookHandle> hooks_;
  std::vector<std::size_t> missing_;
  bool is_in_step_ = false;  // a backward pass of the user's own, between steps, is not reduced
};

class BucketExchange : public GradientExchange {
 public:
  explicit BucketExchange(DeviceCopies& copies)
      : copies_(copies), threads_(devices_of(copies)), buckets_(static_cast<std::size_t>(copies.count())) {
    copies_.run([this](int copy) { of(copy).emplace(threads_, copy, copies_[copy]); });
  }
  // A group ends on its thread; on GPUs the ranks may wait for each other.
  ~BucketExchange() override {
    try {
      copies_.run([this](int copy) { of(copy).reset(); });
    } catch (const std::exception& error) {
      log::warn("mirrored: while the group of the devices ended: {}", error.what());
    }
  }

  void begin() override {
    for (auto& each : buckets_) each->begin();
  }
  void finish(int copy) override { of(copy)->finish(); }
  void stop(int copy, const std::string& reason) override { of(copy)->stop(reason); }

  void settle() override {
    settle_missing();
    count_bytes();
    rebuild_once();
  }

 private:
  std::optional<CopyBuckets>& of(int copy) { return buckets_[static_cast<std::size_t>(copy)]; }

  // The buckets hold the mean everywhere; what remains is which parameters have a gradient.
  void settle_missing() {
    std::vector<std::size_t> copies_without(copies_[0].parameters.size());
    for (const auto& each : buckets_)
      for (const std::size_t p : each->missing()) ++copies_without[p];
    for (int copy = 0; copy < copies_.count(); ++copy)
      for (const std::size_t p : of(copy)->missing()) {
        const Tensor& parameter = copies_[copy].parameters[p].tensor;
        copies_without[p] == buckets_.size() ? clear_grad(parameter) : mark_grad_written(parameter);
      }
  }

  // Counts the bytes of a reduce-scatter and an all-gather from each device to each other one, whatever carries them.
  void count_bytes() {
    const auto devices = static_cast<std::uint64_t>(copies_.count());
    const std::uint64_t each = 2 * buckets_.front()->bytes() / devices;
    for (int to = 0; to < copies_.count(); ++to)
      for (int from = 0; from < copies_.count(); ++from)
        copies_.traffic().add(*copies_[from].device, *copies_[to].device, each);
  }

  // As DistributedDataParallel after its first pass: in the order in which the first device's gradients became ready,
  // after the first step that reached all of them on all devices.
  void rebuild_once() {
    if (has_rebuilt_) return;
    for (const auto& each : buckets_)
      if (!each->missing().empty()) return;
    has_rebuilt_ = true;
    const std::vector<std::size_t> order = buckets_.front()->arrival_order();
    copies_.run([&](int copy) { of(copy)->rebuild(order); });
  }

  DeviceCopies& copies_;
  ThreadGroup threads_;
  std::vector<std::optional<CopyBuckets>> buckets_;  // by copy
  bool has_rebuilt_ = false;
};

}  // namespace

std::unique_ptr<GradientExchange> make_bucket_exchange(DeviceCopies& copies) {
  return std::make_unique<BucketExchange>(copies);
}

}  // namespace lockstep::train
