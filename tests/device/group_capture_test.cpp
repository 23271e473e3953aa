// Operations that cannot be part of a graph: calls on the host's memory, and the passes of optimizers that take part in
// backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "lockstep/comm/backend_context.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/ddp/step_in_backward.h"
#include "lockstep/ddp/zero.h"
#include "src/comm/local/local_backend.h"
#include "tests/conformance/table_store.h"
#include "tests/support/device_training.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Place kAlone{0, 1, 0, 1};

// A backend on the CPU with its own thread, next to that of the device.
std::shared_ptr<ProcessGroup> group_with_a_thread(RecordingDevice& device) {
  BackendContext context;
  context.place = kAlone;
  context.store = std::make_shared<TableStore>();
  context.token = "token";
  context.transport = "shm";
  context.timeout = context.store_timeout = context.stall_timeout = 30s;
  return ProcessGroup::wrap(kAlone, make_backend("host", context), 30s, make_local_backend(device), &device);
}

TEST(GroupCapture, BeginsWhenAFollowerOnTheHostHasMadeItsCall) {
  RecordingDevice device;
  const auto group = group_with_a_thread(device);
  std::promise<void> gate;
  float value = 3;
  const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
  const Work follower = first.then([&](Stream&) {
    gate.get_future().wait();
    value += 1;
    return group->all_reduce_async(&value, 1, DType::kFloat32);
  });
  std::thread opener([&] {
    std::this_thread::sleep_for(50ms);  // a capture that does not wait would have begun by now
    gate.set_value();
  });
  group->begin_capture();
  EXPECT_EQ(message_of([&] { EXPECT_TRUE(follower.done()); }), "nothing was thrown");
  EXPECT_THAT(message_of([&] { first.then([](Stream&) {}); }), HasSubstr("on the host's memory would run once"));
  group->drop_capture();
  opener.join();
  EXPECT_EQ(value, 4);
  EXPECT_EQ(message_of([&] { group->barrier(); }), "nothing was thrown") << "the group continues";
}

template <typename Partner> void expect_refusal(const std::string& reason, bool steps_by_itself) {
  RecordingDevice device;
  const auto group = ProcessGroup::create(kAlone, std::make_shared<TableStore>(), "token", {.device = &device});
  manual_seed(3);
  SmallNet net;
  net.to(device);
  DistributedDataParallel ddp(net, group);
  optim::SGD sgd(ddp.parameters(), {.lr = 0.05F});
  const Partner partner(ddp, sgd);
  const data::Batch batch = small_batch(0);
  const Tensor images = batch.inputs().to(device), labels = batch.targets().to(device);
  const auto step = [&] {
    const Tensor loss = nn::cross_entropy(ddp(images), labels);
    sgd.zero_grad();
    loss.backward();
    if (!steps_by_itself) sgd.step();
    return loss;
  };
  CapturedStep captured = ddp.capture(step);
  const auto before = weights_of(net);
  for (int call = 0; call < 3; ++call)  // would be eager, recorded, replayed
    EXPECT_THAT(message_of([&] { captured(); }),
                AllOf(HasSubstr("capture: " + reason), HasSubstr("call the step directly")));
  EXPECT_EQ(captured.counts().eager + captured.counts().recorded + captured.counts().replayed, 0u);
  EXPECT_EQ(weights_of(net), before);
  EXPECT_GT(step().item(), 0) << "directly it continues";
  EXPECT_NE(weights_of(net), before);
}

TEST(GroupCapture, RefusesOptimizersThatTakePartInBackward) {
  expect_refusal<ZeroRedundancyOptimizer>("ZeroRedundancyOptimizer: the host manages the withheld gradients", false);
  expect_refusal<StepInBackward>("StepInBackward: the host checks for complete averages", true);
}

}  // namespace
}  // namespace lockstep::testing
