// Pinned memory, uploads and graphs of the CUDA device, and a training step that is replayed.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

#include "lockstep/lockstep.h"
#include "tests/conformance/table_store.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/nets.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using GpuPinned = GpuTest;
using GpuGraph = GpuTest;

TEST_F(GpuPinned, MemoryIsTheHostsAndComesFromACache) {
  const std::byte* first = nullptr;
  {
    const Buffer memory = gpu().allocate_pinned(100'000);
    first = memory.data();
    EXPECT_EQ(memory.device(), &cpu_device());
    std::fill_n(memory.data(), memory.bytes(), std::byte{7});
    const Tensor there = Tensor::empty({100'000}, DType::kUInt8, gpu());
    gpu().copy(there.buffer().data(), memory.data(), memory.bytes(), gpu().default_stream());
    EXPECT_THAT(host_values<std::uint8_t>(there), Each(7));
  }
  EXPECT_EQ(gpu().allocate_pinned(100'000).data(), first);
}

TEST_F(GpuPinned, TheSourceOfAnUploadMayChangeAtOnce) {
  std::vector<Tensor> there;
  for (int i = 0; i < 50; ++i) {
    const Tensor host = Tensor::full({50'000}, static_cast<float>(i));
    there.push_back(host.to(gpu()));
    host.fill(-1);
  }
  for (int i = 0; i < 50; ++i)
    ASSERT_THAT(host_values<float>(there[static_cast<std::size_t>(i)]), Each(static_cast<float>(i)));
}

TEST_F(GpuGraph, RunsWhenItIsLaunchedWithTheStreamsThatTookPart) {
  Stream& stream = gpu().default_stream();
  const auto other = gpu().new_stream();
  const auto fork = gpu().new_event(), join = gpu().new_event();
  const Tensor sum = Tensor::full({1000}, 1, gpu()), one = Tensor::full({1000}, 1, gpu());
  gpu().begin_capture(stream);
  EXPECT_TRUE(stream.is_capturing());
  fork->record(stream);
  fork->stream_wait(*other);
  gpu().kernels().add(sum, one, sum, *other);
  join->record(*other);
  join->stream_wait(stream);
  const Tensor doubled = scale(scale(sum, 4), 0.5F);
  EXPECT_THAT(message_of([&] { sum.item(); }), HasSubstr("item"));
  EXPECT_THAT(message_of([&] { stream.synchronize(); }), HasSubstr("the host cannot wait"));
  const auto graph = gpu().end_capture(stream);
  EXPECT_FALSE(other->is_capturing());
  EXPECT_THAT(host_values<float>(sum), Each(1.0F));
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(Tensor::full({1000}, 9, gpu()));
  for (int i = 0; i < 3; ++i) graph->launch(stream);
  EXPECT_THAT(host_values<float>(sum), Each(4.0F));
  EXPECT_THAT(host_values<float>(doubled), Each(8.0F));
  for (const Tensor& tensor : others) EXPECT_THAT(host_values<float>(tensor), Each(9.0F));
}

// The losses of ten steps of a world of one, on batches that are copied into the same tensors.
std::vector<float> train(Device& device, bool graphs, CapturedStep::Counts* counts = nullptr) {
  const auto group = ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &device});
  manual_seed(5);
  const auto net = make_net("convolutional");
  net->to(device);
  DistributedDataParallel ddp(*net, group);
  optim::SGD sgd(ddp.parameters(), {.lr = 0.02F, .momentum = 0.9F});
  const Samples first = make_samples("convolutional", 0, 0, 16);
  const Tensor inputs = first.inputs.to(device), labels = first.labels.to(device);
  const auto step = [&] {
    const Tensor loss = nn::cross_entropy(ddp(inputs), labels);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    return loss;
  };
  CapturedStep captured = ddp.capture(step);
  std::vector<float> losses;
  for (int number = 0; number < 10; ++number) {
    const Samples samples = make_samples("convolutional", number, 0, 16);
    inputs.copy_from(samples.inputs);
    labels.copy_from(samples.labels);
    losses.push_back((graphs ? captured() : step()).item());
  }
  if (counts != nullptr) *counts = captured.counts();
  return losses;
}

TEST_F(GpuGraph, ReplaysTrainAsTheStepsAsWritten) {
  CapturedStep::Counts counts;
  const std::vector<float> replayed = train(gpu(), true, &counts), eager = train(gpu(), false);
  EXPECT_EQ(counts.eager, 3U);
  EXPECT_EQ(counts.recorded, 1U);
  EXPECT_EQ(counts.replayed, 6U);
  // cuDNN may choose other algorithms, which sum in another order.
  for (std::size_t i = 0; i < replayed.size(); ++i)
    EXPECT_NEAR(replayed[i], eager[i], 1e-3F * eager[i]) << "step " << i;
}

}  // namespace
}  // namespace lockstep::testing
