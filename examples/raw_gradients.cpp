// The reducer without Lockstep's tensors: gradients of a network whose backward is written by hand
// are averaged over the ranks while it runs. This is how another framework trains on many processes. Run it from the
// build's folder:
//
//   launcher/lockrun -n 2 examples/raw_gradients
//
//   [0] 300 steps on 2 ranks: the loss fell from 0.67 to 0.02; all ranks have the same weights
//
// docs/embedding.md explains each part.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

constexpr std::size_t kInputs = 8, kHidden = 32, kBatch = 64;
constexpr int kSteps = 300;

// y = W x + b for a batch of rows: values of the framework's own.
struct Dense {
  std::string name;
  std::size_t in, out;
  std::vector<float> weight, bias;          // (out, in) and (out)
  std::span<float> weight_grad, bias_grad;  // in the reducer's buckets

  Dense(std::string of, std::size_t inputs, std::size_t outputs, ls::Philox& random)
      : name(std::move(of)), in(inputs), out(outputs), weight(in * out), bias(out) {
    const float bound = 1 / std::sqrt(static_cast<float>(in));
    for (float& value : weight) value = random.uniform(-bound, bound);
  }

  std::vector<float> forward(const std::vector<float>& x) const {
    std::vector<float> y(kBatch * out);
    for (std::size_t row = 0; row < kBatch; ++row)
      for (std::size_t o = 0; o < out; ++o) {
        float sum = bias[o];
        for (std::size_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[row * in + i];
        y[row * out + o] = sum;
      }
    return y;
  }

  // Writes the gradients of this layer, and returns that of x.
  std::vector<float> backward(const std::vector<float>& x, const std::vector<float>& y_grad) {
    std::fill(weight_grad.begin(), weight_grad.end(), 0.F);
    std::fill(bias_grad.begin(), bias_grad.end(), 0.F);
    std::vector<float> x_grad(x.size());
    for (std::size_t row = 0; row < kBatch; ++row)
      for (std::size_t o = 0; o < out; ++o) {
        const float grad = y_grad[row * out + o];
        bias_grad[o] += grad;
        for (std::size_t i = 0; i < in; ++i) {
          weight_grad[o * in + i] += grad * x[row * in + i];
          x_grad[row * in + i] += grad * weight[o * in + i];
        }
      }
    return x_grad;
  }
};

// The label of a point: whether the sum of its first half is larger than that of its second.
void draw_batch(ls::Philox& random, std::vector<float>& points, std::vector<float>& labels) {
  for (std::size_t row = 0; row < kBatch; ++row) {
    float difference = 0;
    for (std::size_t i = 0; i < kInputs; ++i) {
      const float value = points[row * kInputs + i] = random.uniform(-1, 1);
      difference += i < kInputs / 2 ? value : -value;
    }
    labels[row] = difference > 0 ? 1.F : 0.F;
  }
}

class Training {
 public:
  explicit Training(std::shared_ptr<ls::ProcessGroup> group)
      : group_(std::move(group)),
        init_(/*seed=*/1, /*stream=*/static_cast<std::uint64_t>(group_->rank())),
        hidden_("hidden", kInputs, kHidden, init_),
        output_("output", kHidden, 1, init_),
        reducer_(group_, gradients(), {.caps = {256}}) {  // so small that each layer of this network has its bucket
    // Every rank drew other weights: rank 0's are those of all.
    for (std::vector<float>* values : parameters()) group_->broadcast(std::span(*values), /*root=*/0);
    hidden_.weight_grad = slot(0), hidden_.bias_grad = slot(1);
    output_.weight_grad = slot(2), output_.bias_grad = slot(3);
  }

  float step(const std::vector<float>& points, const std::vector<float>& labels) {
    std::vector<float> sums = hidden_.forward(points), active = sums;
    for (float& value : active) value = std::max(value, 0.F);
    const std::vector<float> logits = output_.forward(active);
    float loss = 0;
    std::vector<float> grad(kBatch);
    for (std::size_t row = 0; row < kBatch; ++row) {
      const float p = 1 / (1 + std::exp(-logits[row]));
      loss -= std::log(labels[row] > 0 ? p : 1 - p) / kBatch;
      grad[row] = (p - labels[row]) / kBatch;
    }

    // Backward: the gradients of a layer travel while those of the layer before it are computed.
    std::vector<float> active_grad = output_.backward(active, grad);
    reducer_.mark_ready(2), reducer_.mark_ready(3);
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (sums[i] <= 0) active_grad[i] = 0;
    hidden_.backward(points, active_grad);
    reducer_.mark_ready(0), reducer_.mark_ready(1);
    reducer_.finish();  // from here on the slots hold the averages

    const auto all = parameters();
    for (std::size_t p = 0; p < all.size(); ++p) {
      const std::span<const float> average = slot(p);
      for (std::size_t i = 0; i < average.size(); ++i) (*all[p])[i] -= 0.5F * average[i];
    }
    return loss;
  }

  bool has_weights_of_rank_0() {
    std::int32_t equal = 1;
    for (const std::vector<float>* values : parameters()) {
      std::vector<float> theirs = *values;
      group_->broadcast(std::span(theirs), 0);
      if (std::memcmp(theirs.data(), values->data(), theirs.size() * sizeof(float)) != 0) equal = 0;
    }
    group_->all_reduce(&equal, 1, ls::DType::kInt32, ls::ReduceOp::kMin);
    return equal == 1;
  }

 private:
  std::vector<ls::GradientInfo> gradients() const {
    return {{.name = "hidden.weight", .count = hidden_.weight.size()},
            {.name = "hidden.bias", .count = hidden_.bias.size()},
            {.name = "output.weight", .count = output_.weight.size()},
            {.name = "output.bias", .count = output_.bias.size()}};
  }
  std::vector<std::vector<float>*> parameters() {
    return {&hidden_.weight, &hidden_.bias, &output_.weight, &output_.bias};
  }
  std::span<float> slot(std::size_t gradient) const {
    const ls::Buffer memory = reducer_.slot(gradient);
    return {reinterpret_cast<float*>(memory.data()), memory.bytes() / sizeof(float)};
  }

  std::shared_ptr<ls::ProcessGroup> group_;
  ls::Philox init_;
  Dense hidden_, output_;
  ls::Reducer reducer_;
};

int run(int, char**) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  Training training(group);
  ls::Philox random(/*seed=*/2, /*stream=*/static_cast<std::uint64_t>(group->rank()));
  std::vector<float> points(kBatch * kInputs), labels(kBatch);
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    draw_batch(random, points, labels);
    last = training.step(points, labels);
    if (step == 0) first = last;
  }
  const bool equal = training.has_weights_of_rank_0();
  if (group->rank() == 0)
    std::printf("%d steps on %d ranks: the loss fell from %.2f to %.2f; %s\n", kSteps, group->world_size(), first, last,
                equal ? "all ranks have the same weights" : "the ranks' weights differ");
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("raw_gradients", run, argc, argv); }
