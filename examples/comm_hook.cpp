// A comm hook of your own, with two calls for each bucket: the ranks agree on the largest magnitude, then add up int8.
// Run it from the build's folder:
//
//   launcher/lockrun -n 2 examples/comm_hook
//
//   [0] average: the loss fell from 1.4 to 0.2, 256 bytes a step
//   [0] shared_scale: the loss fell from 1.4 to 0.2, 68 bytes a step
//
// docs/comm_hooks.md lists the hooks of the library.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

// Sums of int8 fit into int8 because all ranks have one scale and their sum stays below 128. The second call is chained
// to the first, and takes its place among the group's calls at once: backward continues, and the next bucket's calls
// come after it on all ranks.
class SharedScale : public ls::BucketHook {
 public:
  std::size_t bytes_sent = 0;

  std::string describe() const override { return "shared_scale"; }
  std::string refusal(std::span<const ls::GradientInfo> gradients) const override {
    for (const ls::GradientInfo& gradient : gradients)
      if (gradient.dtype != ls::DType::kFloat32)
        return "shared_scale takes float32, and '" + gradient.name + "' has another type";
    return "";
  }

  ls::Work reduce(ls::ProcessGroup& group, const ls::GradBucket& bucket) override {
    Job& job = jobs_[bucket.index];  // stays where it is: what is chained runs later, on the communication thread
    if (job.rounded.bytes() != bucket.count) job.rounded = group.allocate(bucket.count);
    job.values = {static_cast<float*>(bucket.buffer), bucket.count};
    job.ranks = static_cast<float>(group.world_size());
    job.largest = 0;
    for (const float value : job.values) job.largest = std::max(job.largest, std::abs(value));
    bytes_sent += sizeof(float) + bucket.count;

    const ls::Purpose purpose{"bucket", bucket.index};  // for messages and flight records
    const ls::Work agreed =
        group.all_reduce_async(&job.largest, 1, ls::DType::kFloat32, ls::ReduceOp::kMax, {.purpose = purpose});
    const ls::Work summed = agreed.then([&group, &job, purpose](ls::Stream&) {
      job.round();
      return group.all_reduce_async(job.rounded.data(), job.rounded.bytes(), ls::DType::kInt8, ls::ReduceOp::kSum,
                                    {.purpose = purpose});
    });
    return summed.then([&job](ls::Stream&) { job.expand(); });  // the bucket is done when this is
  }

 private:
  struct Job {
    std::span<float> values;
    ls::Buffer rounded;
    float largest = 0, ranks = 1;

    std::int8_t* numbers() const { return reinterpret_cast<std::int8_t*>(rounded.data()); }
    float steps() const { return std::floor(127 / ranks); }
    void round() const {
      const float factor = largest > 0 ? steps() / largest : 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        numbers()[i] = static_cast<std::int8_t>(std::lround(values[i] * factor));
    }
    void expand() const {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(numbers()[i]) * largest / (steps() * ranks);
    }
  };
  std::map<int, Job> jobs_;
};

// The label of a point is the largest of its first four coordinates.
void fill(const ls::Tensor& points, const ls::Tensor& labels, ls::Philox& random) {
  for (float& value : points.span<float>()) value = random.uniform(-1.f, 1.f);
  for (std::int64_t row = 0; row < labels.count(); ++row) {
    const auto point = points.span<float>().subspan(static_cast<std::size_t>(row) * 16, 4);
    labels.span<std::int64_t>()[static_cast<std::size_t>(row)] =
        std::max_element(point.begin(), point.end()) - point.begin();
  }
}

struct Net : ls::nn::Module {
  ls::nn::Linear only{16, 4, {.bias = false}};
  Net() {
    add("only", only);
    only.weight.fill(0);
  }
  ls::Tensor forward(const ls::Tensor& x) override { return only(x); }
};

// The loss of the first step and of the last.
std::pair<float, float> train(const std::shared_ptr<ls::ProcessGroup>& group, const ls::CommHook& hook) {
  Net net;
  ls::DistributedDataParallel ddp(net, group, {.comm_hook = hook});
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.5f, .momentum = 0.9f});
  ls::Philox random(/*seed=*/1, /*stream=*/static_cast<std::uint64_t>(group->rank()));
  const ls::Tensor points = ls::Tensor::empty({64, 16}), labels = ls::Tensor::empty({64}, ls::DType::kInt64);
  ls::Tensor first, last;
  for (int step = 0; step < 200; ++step) {
    fill(points, labels, random);
    const ls::Tensor loss = ls::nn::cross_entropy(ddp(points), labels);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    last = ls::detach(loss);
    if (step == 0) first = last;
  }
  return {first.item(), last.item()};
}

int run(int, char**) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const auto hook = std::make_shared<SharedScale>();
  const auto [first, average] = train(group, {});
  const auto [same, scaled] = train(group, hook);
  if (group->rank() != 0) return 0;
  std::printf("average: the loss fell from %.1f to %.1f, %d bytes a step\n", first, average, 16 * 4 * 4);
  std::printf("shared_scale: the loss fell from %.1f to %.1f, %zu bytes a step\n", same, scaled,
              hook->bytes_sent / 200);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("comm_hook", run, argc, argv); }
