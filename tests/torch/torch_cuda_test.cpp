// TorchDdp of models on a GPU, with PyTorch's CUDA, the GPU and NCCL simulated (host_cuda.h, recording_device.h,
// nccl/stub_nccl.cpp): averages, the order between the streams of torch and of the reducer, checkpoints, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <array>
#include <filesystem>
#include <future>
#include <limits>
#include <thread>

#include "lockstep/reduce/hooks.h"
#include "lockstep/torch_checkpoint.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/temporary.h"
#include "tests/torch/host_cuda.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLong{50};  // for what does not wait for the device's default stream

// Two layers and a buffer that each forward changes.
struct WithBufferImpl : torch::nn::Module {
  torch::nn::Linear first{6, 5}, second{5, 3};
  torch::Tensor mean;
  explicit WithBufferImpl(double start = 0) {
    register_module("first", first);
    register_module("second", second);
    fill_with_waves(*this, start);
    mean = register_buffer("mean", torch::zeros({5}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::tanh(first(x));
    if (is_training()) mean.mul_(0.5).add_(hidden.detach().mean(0), 0.5);
    return second(hidden - mean);
  }
};
TORCH_MODULE(WithBuffer);

using Group = std::shared_ptr<ProcessGroup>;

void run_on_gpus(int ranks, const std::function<void(const Group&, HostCuda&, RecordingDevice&)>& body) {
  expect_no_failures(run_gpu_ranks(ranks, [&](const Group& group, RecordingDevice& device) {
    HostCuda cuda(device);
    body(group, cuda, device);
  }));
}

at::Device device_of(const ProcessGroup& group) {
  const Device& device = group.local_device();
  if (device.kind() == DeviceKind::kCpu) return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.index())};
}

// The weights and the buffer after some steps, on the CPU.
std::vector<torch::Tensor> train(const Group& group, const TorchDdpOptions& options) {
  const at::Device device = device_of(*group);
  WithBuffer model(group->rank());
  model->to(device);
  auto ddp = torch_ddp(model, group, options);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad(/*set_to_none=*/step % 2 == 0);
    if (step == 2) {
      const auto local = ddp.no_sync();
      squares(ddp(batch_of(*group, 50, {4, 6}).to(device))).backward();
    }
    squares(ddp(batch_of(*group, step, {4, 6}).to(device))).backward();
    sgd.step();
  }
  std::vector<torch::Tensor> weights;
  for (const torch::Tensor& parameter : model->parameters()) weights.push_back(parameter.detach().to(torch::kCPU));
  weights.push_back(model->mean.to(torch::kCPU));
  return weights;
}

// Each rank has options of its own: a comm hook has a state. Each has a buffer of its own after the last forward.
void expect_weights_of_cpus(const std::function<TorchDdpOptions()>& options) {
  std::array<std::vector<torch::Tensor>, 2> expected;
  expect_no_failures(run_torch_ranks(
      2, [&](const Group& group) { expected.at(static_cast<std::size_t>(group->rank())) = train(group, options()); }));
  run_on_gpus(2, [&](const Group& group, HostCuda&, RecordingDevice&) {
    const auto weights = train(group, options()), wanted = expected.at(static_cast<std::size_t>(group->rank()));
    ASSERT_EQ(weights.size(), wanted.size());
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_TRUE(torch::allclose(weights[i], wanted[i], 1e-5, 1e-7)) << i;
    for (std::size_t i = 0; i + 1 < weights.size(); ++i)
      expect_same_on_ranks(*group, weights[i], "tensor " + std::to_string(i));
  });
}

TEST(TorchCuda, TrainsAsOnTheCpu) {
  expect_weights_of_cpus([] { return TorchDdpOptions{.bucket_cap_mb = {0.0001}}; });
}
TEST(TorchCuda, FindsUnusedParameters) {
  expect_weights_of_cpus([] { return TorchDdpOptions{.find_unused_parameters = true}; });
}
TEST(TorchCuda, CommHook) {
  expect_weights_of_cpus([] { return TorchDdpOptions{.comm_hook = hooks::bf16()}; });
}
TEST(TorchCuda, ChecksGradients) {
  expect_weights_of_cpus([] {
    return TorchDdpOptions{.bucket_cap_mb = {0.0001}, .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep};
  });
}

// backward() only queues work: it returns while the reductions cannot run, and what torch computes later waits for
// them.
TEST(TorchCuda, TheHostDoesNotWait) {
  run_on_gpus(2, [](const Group& group, HostCuda& cuda, RecordingDevice& device) {
    WithBuffer model;
    model->to(cuda.device());
    auto ddp = torch_ddp(model, group, {.bucket_cap_mb = {0.0001}, .forward_sync_buffers = false});
    const auto pass = [&](int step) {
      model->zero_grad();
      squares(ddp(batch_of(*group, step, {4, 6}).to(cuda.device()))).backward();
    };
    pass(0);  // after which the buckets are planned again
    const torch::Tensor& weight = model->second->weight;
    const torch::Tensor twice = torch::zeros_like(weight).detach();
    cuda.stream().synchronize();
    group->barrier();
    device.hold_default_stream();
    pass(1);
    twice.copy_(weight.grad()).mul_(2);
    std::this_thread::sleep_for(kLong);
    device.release_default_stream();
    expect_same_on_ranks(*group, twice.to(torch::kCPU), "twice the average");
    EXPECT_TRUE(torch::equal(twice.to(torch::kCPU), weight.grad().to(torch::kCPU) * 2));
  });
}

// Only has a buffer.
struct PassOnImpl : torch::nn::Module {
  torch::nn::Linear unused{2, 2};
  torch::Tensor buffer;
  PassOnImpl() {
    register_module("unused", unused);
    buffer = register_buffer("buffer", torch::zeros({3}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};
TORCH_MODULE(PassOn);

TEST(TorchCuda, TheHostDoesNotWaitForBuffers) {
  run_on_gpus(2, [](const Group& group, HostCuda& cuda, RecordingDevice& device) {
    PassOn model;
    model->to(cuda.device());
    auto ddp = torch_ddp(model, group);
    const torch::Tensor x = batch_of(*group, 0, {4, 6}).to(cuda.device());
    group->barrier();
    device.hold_default_stream();
    std::promise<void> is_back;
    const std::jthread releases([&, back = is_back.get_future()] {
      EXPECT_EQ(back.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      device.release_default_stream();
    });
    ddp(x);
    is_back.set_value();
  });
}

TEST(TorchCuda, CannotBePartOfAGraph) {
  const auto failures = [](bool of_backward) {
    return run_gpu_ranks(2, [of_backward](const Group& group, RecordingDevice& device) {
      HostCuda cuda(device);
      WithBuffer model;
      model->to(cuda.device());
      auto ddp = torch_ddp(model, group);
      const torch::Tensor x = batch_of(*group, 0, {4, 6}).to(cuda.device());
      const torch::Tensor y = ddp(x), gradient = torch::ones_like(y);
      cuda.stream().synchronize();
      device.begin_capture(cuda.stream());
      try {
        of_backward ? y.backward(gradient) : void(ddp(x));
      } catch (...) {
        device.end_capture(cuda.stream());
        throw;
      }
    });
  };
  for (const bool of_backward : {false, true})
    EXPECT_THAT(failures(of_backward), Each(HasSubstr("torch is capturing a CUDA graph"))) << of_backward;
}

// Wrapping and the first pass are queued while the device cannot run rank 0's values and the zeros of the buckets.
TEST(TorchCuda, TheFirstPassWaitsForThePreparation) {
  std::vector<torch::Tensor> alone;
  for (int rank = 0; rank < 2; ++rank) {
    WithBuffer model;
    squares(model->forward(waves({4, 6}, 100.0 * rank))).backward();
    alone.push_back(model->first->weight.grad());
  }
  const torch::Tensor expected = (alone[0] + alone[1]) / 2;
  run_on_gpus(2, [&](const Group& group, HostCuda& cuda, RecordingDevice& device) {
    WithBuffer model(group->rank());
    model->to(cuda.device());
    const torch::Tensor x = batch_of(*group, 0, {4, 6}).to(cuda.device());
    device.hold_default_stream();
    const std::jthread releases([&] { std::this_thread::sleep_for(kLong), device.release_default_stream(); });
    auto ddp = torch_ddp(model, group);
    squares(ddp(x)).backward();
    EXPECT_TRUE(torch::allclose(model->first->weight.grad().to(torch::kCPU), expected, 1e-5, 1e-7));
  });
}

TEST(TorchCuda, UnevenInputsAndWeights) {
  run_on_gpus(2, [](const Group& group, HostCuda& cuda, RecordingDevice&) {
    WithBuffer model(group->rank());
    model->to(cuda.device());
    auto ddp = torch_ddp(model, group);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    ddp.join([&] {
      for (int step = 0; step < 2 + group->rank(); ++step) {
        sgd.zero_grad();
        ddp.set_weight(step + 1.0 + group->rank());
        squares(ddp(batch_of(*group, step, {4, 6}).to(cuda.device()))).backward();
        sgd.step();
      }
    });
    for (const torch::Tensor& parameter : model->parameters())
      expect_same_on_ranks(*group, parameter.detach().to(torch::kCPU), "a parameter");
  });
}

TEST(TorchCuda, SkipsAStepWithNans) {
  run_on_gpus(2, [](const Group& group, HostCuda& cuda, RecordingDevice&) {
    WithBuffer model;
    model->to(cuda.device());
    auto ddp = torch_ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    torch::Tensor x = batch_of(*group, 0, {4, 6});
    if (group->rank() == 1) x[0][0] = std::numeric_limits<float>::quiet_NaN();
    squares(ddp(x.to(cuda.device()))).backward();
    EXPECT_EQ(ddp.skipped_steps(), 1);
    EXPECT_FALSE(model->first->weight.grad().defined());
    EXPECT_THAT(ddp.last_skipped(), HasSubstr("first.weight"));
  });
}

// A rank's state is on its own GPU afterwards, although rank 0 wrote the file.
TEST(TorchCuda, Checkpoints) {
  const std::string folder = temporary("torch-cuda-checkpoint");
  run_on_gpus(2, [&](const Group& group, HostCuda& cuda, RecordingDevice&) {
    const auto step = [&](WithBuffer& model, auto& ddp, torch::optim::Adam& adam, int number) {
      adam.zero_grad();
      squares(ddp(batch_of(*group, number, {4, 6}).to(cuda.device()))).backward();
      adam.step();
      return model->first->weight.detach().to(torch::kCPU);
    };
    WithBuffer one, two(3);
    one->to(cuda.device());
    two->to(cuda.device());
    auto first = torch_ddp(one, group), second = torch_ddp(two, group);
    torch::optim::Adam adam(one->parameters(), 0.01), other(two->parameters(), 0.01);
    step(one, first, adam, 0);
    save_torch_checkpoint(folder, {.model = *one, .optimizer = adam, .group = group, .step = 1});
    EXPECT_EQ(load_torch_checkpoint(folder, {.model = *two, .optimizer = other, .group = group}), 1);
    for (int number = 1; number < 4; ++number)
      EXPECT_TRUE(torch::equal(step(one, first, adam, number), step(two, second, other, number))) << number;
    EXPECT_EQ(other.state().size(), 4u);
    for (const auto& [key, state] : other.state())
      EXPECT_EQ(static_cast<torch::optim::AdamParamState&>(*state).exp_avg().device(), cuda.device());
  });
  std::filesystem::remove_all(folder);
}

// An ignored parameter on the CPU is in front.
TEST(TorchCuda, TheStateIsWhereTheOptimizersParametersAre) {
  struct Mixed : torch::nn::Module {
    torch::nn::Linear table{2, 2}, layer{6, 3};
    Mixed() {
      register_module("table", table);
      register_module("layer", layer);
      fill_with_waves(*this, 1);
    }
    torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  };
  const std::string folder = temporary("torch-cuda-mixed");
  run_on_gpus(2, [&](const Group& group, HostCuda& cuda, RecordingDevice&) {
    const auto model = std::make_shared<Mixed>();
    model->layer->to(cuda.device());
    auto ddp = torch_ddp(model, group, {.ignored_parameters = {"table.weight", "table.bias"}});
    torch::optim::Adam adam(model->layer->parameters(), 0.01);
    const TorchCheckpointParts parts{.model = *model, .optimizer = adam, .group = group, .step = 1};
    const torch::Tensor x = batch_of(*group, 0, {4, 6}).to(cuda.device());
    squares(ddp(x)).backward();
    adam.step();
    save_torch_checkpoint(folder, parts);
    EXPECT_EQ(load_torch_checkpoint(folder, parts), 1);
    squares(ddp(x)).backward();
    adam.step();
    EXPECT_EQ(model->table->weight.device(), at::kCPU);
  });
  std::filesystem::remove_all(folder);
}

TEST(TorchCuda, AModelOnTheCpuInAGroupOfGpus) {
  run_on_gpus(2, [](const Group& group, HostCuda&, RecordingDevice&) {
    TwoHeads model(group->rank());
    auto ddp = torch_ddp(model, group);
    squares(ddp(batch_of(*group, 0, {4, 6}))).backward();
    expect_equal_replicas(*group, *model);
    expect_same_on_ranks(*group, model->trunk->weight.grad(), "a gradient");
  });
}

TEST(TorchCuda, RefusesOtherDevices) {
  const auto failures = [](const std::function<void(WithBuffer&, at::Device, int)>& move) {
    return run_gpu_ranks(2, [&](const Group& group, RecordingDevice& device) {
      const HostCuda cuda(device);
      WithBuffer model;
      move(model, cuda.device(), group->rank());
      torch_ddp(model, group);
    });
  };
  RecordingDevice spare(6);
  const HostCuda elsewhere(spare);
  EXPECT_THAT(failures([&](WithBuffer& model, at::Device, int) { model->to(elsewhere.device()); }),
              Each(HasSubstr("parameter 'first.weight' is on cuda:6, but the group's device is cuda:")));
  EXPECT_THAT(failures([](WithBuffer& model, at::Device device, int) { model->first->to(device); }),
              Each(HasSubstr("parameter 'second.weight' is on cpu, but 'first.weight' is on cuda:")));
  EXPECT_THAT(
      failures([](WithBuffer& model, at::Device device, int rank) { model->to(rank == 1 ? device : at::kCPU); }),
      Each(HasSubstr("parameters on cuda")));
  EXPECT_THAT(run_torch_ranks(2,
                              [&](const Group& group) {
                                WithBuffer model;
                                model->to(elsewhere.device());
                                torch_ddp(model, group);
                              }),
              Each(HasSubstr("is on cuda:6, but the group's device is the CPU, so the group has no NCCL")));
}

}  // namespace
}  // namespace lockstep::testing
