// Communication overlaps with backward: the order of events with a wire that takes time but no CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "src/autograd/engine/variable_state.h"
#include "src/comm/testing/delay_backend.h"
#include "tests/support/in_mib.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kLayers = 8;

// Eight layers of 16 x 16 without bias, 1 KiB each, in buckets of two. Backward pauses before the gradient of the first
// layer, which is the last to become ready.
class Overlap : public ::testing::Test {
 protected:
  void build(milliseconds cost) {
    auto owned = std::make_unique<DelayBackend>(DelayCost{cost, 1000});
    wire = owned.get();
    group = ProcessGroup::wrap({}, std::move(owned));
    for (int i = 0; i < kLayers; ++i) model.append<nn::Linear>(16, 16, nn::LinearLayerOptions{.bias = false});
    before.push_back(register_grad_hook(model.parameters().front(),
                                        [this](const Tensor&) { std::this_thread::sleep_for(last_layer_takes); }));
    ddp = std::make_unique<DistributedDataParallel>(
        model, group, DistributedDataParallelOptions{.bucket_cap_mb = {testing::in_mib(2048), testing::in_mib(2048)}});
    for (const Tensor& parameter : model.parameters())  // after ddp's own hook
      after.push_back(register_last_grad_hook(parameter, [this](const Tensor&) {
        ready.push_back(Clock::now());
        issued.push_back(wire->events().size());
      }));
    wire->clear_events();
  }

  void backward() {
    const Tensor loss = l2_loss((*ddp)(Tensor::full({4, 16}, 1)));
    register_backward_end_hook(loss, [this] { computed = Clock::now(); });  // runs before the reducer waits
    loss.backward();
    finished = Clock::now();
    events = wire->events();
  }

  milliseconds last_layer_takes{0};
  nn::Sequential model;
  DelayBackend* wire = nullptr;
  std::shared_ptr<ProcessGroup> group;
  std::vector<HookHandle> before, after;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::vector<Clock::time_point> ready;
  std::vector<std::size_t> issued;  // number of sent buckets when each gradient was ready
  std::vector<DelayEvent> events;
  Clock::time_point computed, finished;
};

TEST_F(Overlap, EveryBucketStartsAtItsLastGradientTheFirstBeforeHalfOfThem) {
  build(milliseconds(5));
  backward();
  EXPECT_EQ(issued, (std::vector<std::size_t>{0, 1, 1, 2, 2, 3, 3, 4}));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_LE(events[0].started, ready[kLayers / 2 - 1])
      << "the first bucket is sent before half of the gradients are ready";
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].kind, OperationKind::kAllReduce);
    EXPECT_EQ(events[i].purpose_index, static_cast<int>(i)) << "bucket order";
    EXPECT_EQ(events[i].bytes, 2048U);
    EXPECT_LE(events[i].issued, ready[2 * i + 1]);
    EXPECT_GE(finished, events[i].finished) << "backward must return after all are averaged";
  }
}

TEST_F(Overlap, WithShortCostsOnlyTheLastBucketIsPendingWhenBackwardEnds) {
  last_layer_takes = milliseconds(60);  // longer than three operations of 10 ms
  build(milliseconds(10));
  backward();
  ASSERT_EQ(events.size(), 4U);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) EXPECT_LE(events[i].finished, computed) << "bucket " << i;
  EXPECT_GE(events.back().issued, ready[kLayers - 2] + milliseconds(60));
  EXPECT_GE(finished, events.back().finished);
}

TEST_F(Overlap, WithLongCostsTheWireIsNeverIdle) {
  build(milliseconds(40));
  backward();
  ASSERT_EQ(events.size(), 4U);
  for (std::size_t i = 1; i < events.size(); ++i)
    EXPECT_EQ(events[i].started, std::max(events[i].issued, events[i - 1].finished));
  double waited = 0;
  for (const BucketTimes& bucket : ddp->reducer().last_pass()) waited += bucket.waited;
  EXPECT_GE(waited, std::chrono::duration<double>(events.back().finished - computed).count() - 0.005)
      << "the rest is waited for";
}

}  // namespace
}  // namespace lockstep
