// One rank of the GPU tests' jobs. Arguments are name=value; mode= is one of
//   train    trains net= for steps=, on batch=/ranks samples per rank, with graph=1 in graph mode, with hook= as its
//            comm hook; prints the global mean losses and the hash of the weights
//   overlap  shows that the first bucket's all-reduce ends before backward does, by the events of both streams
//   kill     all-reduces without end; rank fail_rank= dies by SIGKILL during call fail_at=, and the others print when
//            and why they end
// gpu_ranks_test starts it and reads its output.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/faults/rank_arguments.h"
#include "tests/gpu/nets.h"
#include "tests/support/in_mib.h"

namespace {

namespace ls = lockstep;
using ls::testing::RankArguments;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ls::CommHook hook_named(const std::string& name) {
  if (name.empty()) return {};
  if (name == "bf16") return ls::hooks::bf16();
  if (name == "int8") return ls::hooks::int8();
  if (name == "power_sgd") return ls::hooks::power_sgd({.matrix_rank = 4, .start_step = 3});
  if (name == "top_k") return ls::hooks::top_k({.ratio = 0.1});
  throw ls::InvalidArgument("no comm hook '{}'", name);
}

int train(const RankArguments& arguments, const std::shared_ptr<ls::ProcessGroup>& group) {
  const std::string name = arguments.text("net");
  const std::int64_t batch = arguments.number("batch", 32) / group->world_size();
  ls::Device& device = group->local_device();
  ls::manual_seed(5);
  const auto net = ls::testing::make_net(name);
  net->to(device);
  ls::DistributedDataParallel ddp(
      *net, group,
      {.bucket_cap_mb = {ls::testing::in_mib(4096), ls::testing::in_mib(16384)},  // several buckets
       .comm_hook = hook_named(arguments.text("hook"))});
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.05F, .momentum = 0.9F});
  const ls::testing::Samples first = ls::testing::make_samples(name, 0, 0, batch);
  const ls::Tensor inputs = ls::Tensor::empty(first.inputs.shape(), ls::DType::kFloat32, device);
  const ls::Tensor labels = ls::Tensor::empty({batch}, ls::DType::kInt64, device);
  const std::function<ls::Tensor()> eager = [&] {
    const ls::Tensor loss = ls::nn::cross_entropy(ddp(inputs), labels);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    return loss;
  };
  std::optional<ls::CapturedStep> captured;
  if (arguments.number("graph", 0) != 0) captured.emplace(ddp.capture(eager));
  for (int step = 0; step < arguments.number("steps", 40); ++step) {
    const ls::testing::Samples samples = ls::testing::make_samples(name, step, group->rank() * batch, batch);
    inputs.copy_from(samples.inputs);
    labels.copy_from(samples.labels);
    float mean = (captured ? (*captured)() : eager()).item();
    group->all_reduce(std::span(&mean, 1), ls::ReduceOp::kAvg);
    if (group->rank() == 0) fmt::print("loss {} {:.6f}\n", step, mean);
  }
  if (captured)
    fmt::print("graphs: {} recorded, {} replayed\n", captured->counts().recorded, captured->counts().replayed);
  fmt::print("rank {} on {} has {}\n", group->rank(), device.name(), ls::hash_of(net->named_parameters()));
  std::fflush(stdout);
  ls::check_replicas_equal(*group, net->named_parameters(), "weights");
  return 0;
}

// Wide layers: the first bucket is full when one of them has been differentiated, and the others are still to come.
int overlap(const RankArguments& arguments, const std::shared_ptr<ls::ProcessGroup>& group) {
  const std::int64_t width = arguments.number("width", 4096), batch = arguments.number("batch", 8192);
  const int layers = arguments.number("layers", 12);
  ls::Device& device = group->local_device();
  ls::nn::Sequential net;
  for (int i = 0; i < layers; ++i)
    net.append<ls::nn::Linear>(width, width, ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
  net.append<ls::nn::Linear>(width, 10);
  net.to(device);

  // The last gradient of backward is that of the first layer: this hook runs before DDP's own, so before anything waits
  // for a bucket.
  const auto backward_ends = device.new_event();
  ls::Stream& stream = device.default_stream();
  const ls::Tensor last = net.parameters()[0];
  const ls::HookHandle mark = ls::register_grad_hook(last, [&](const ls::Tensor&) { backward_ends->record(stream); });
  std::optional<ls::Work> first_bucket;
  const ls::CommHook hook = [&](ls::ProcessGroup& ranks, const ls::GradBucket& bucket) {
    const ls::Work work = ranks.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ls::ReduceOp::kAvg,
                                                 {.purpose = {"bucket", bucket.index}, .device = bucket.device});
    if (bucket.index == 0) first_bucket = work;
    return work;
  };
  ls::DistributedDataParallel ddp(net, group, {.comm_hook = hook});
  const ls::Tensor x = ls::Tensor::full({batch, width}, 0.01F, device);
  const ls::Tensor labels = ls::Tensor::zeros({batch}, ls::DType::kInt64, device);
  bool overlapped = true;
  for (int step = 0; step < 4; ++step) {
    const ls::Tensor loss = ls::nn::cross_entropy(ddp(x), labels);
    stream.synchronize();
    group->barrier();
    const double start = now_ms();
    loss.backward();
    const double queued = now_ms() - start;
    first_bucket->wait();
    const double reduced = now_ms() - start;
    const bool computing = !backward_ends->done();
    backward_ends->synchronize();
    const double ended = now_ms() - start;
    stream.synchronize();
    if (step == 0) continue;  // libraries load and choose algorithms in the first
    overlapped = overlapped && computing;
    fmt::print(
        "rank {} step {}: backward queued after {:.1f} ms, first bucket reduced after {:.1f} ms, backward computed "
        "until {:.1f} ms\n",
        group->rank(), step, queued, reduced, ended);
  }
  fmt::print("rank {}: {}\n", group->rank(), overlapped ? "overlapped" : "the first bucket came only after backward");
  group->barrier();
  return overlapped ? 0 : 1;
}

int kill(const RankArguments& arguments, const std::shared_ptr<ls::ProcessGroup>& group) {
  const std::int64_t count = arguments.number("count", 16 << 20);
  const ls::DeviceKind kind = group->local_device().kind();
  const ls::Tensor data =
      ls::Tensor::wrap(group->allocate(static_cast<std::size_t>(count) * sizeof(float), kind), {count});
  const ls::CallOptions call{.device = kind};
  try {
    for (int round = 1;; ++round) {
      const ls::Work work = group->all_reduce_async(data.data<float>(), static_cast<std::size_t>(count),
                                                    ls::DType::kFloat32, ls::ReduceOp::kAvg, call);
      if (group->rank() == arguments.number("fail_rank", 1) && round == arguments.number("fail_at", 10)) {
        fmt::print("dies at {:.3f}\n", now_ms());
        std::fflush(stdout);
        ls::testing::go_wrong("kill");
      }
      work.wait();
    }
  } catch (const ls::PeerLost&) {
    fmt::print("knows at {:.3f}\n", now_ms());
    std::fflush(stdout);
    throw;
  }
}

int run(int argc, char** argv) {
  const RankArguments arguments(argc, argv);
  const std::string mode = arguments.text("mode");
  const auto group = ls::init_process_group();
  if (mode == "train") return train(arguments, group);
  if (mode == "overlap") return overlap(arguments, group);
  if (mode == "kill") return kill(arguments, group);
  throw ls::InvalidArgument("mode='{}': expected train, overlap or kill", mode);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("gpu_rank", run, argc, argv); }
