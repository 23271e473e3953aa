#include "lockstep/tensor/random.h"

#include <cmath>
#include <vector>

namespace lockstep {

namespace {

thread_local RandomState this_threads_state;
thread_local SampleNumbers this_threads_samples;

// Draws on the host and copies, so that a tensor's values do not depend on its device.
template <typename Draw> void fill_from_next_stream(const Tensor& tensor, Draw&& draw) {
  Philox random(this_threads_state.seed, random_stream(RandomUse::kWeights, this_threads_state.next_stream++));
  Tensor values = tensor.device().kind() == DeviceKind::kCpu
                      ? tensor
                      : Tensor::empty(tensor.shape(), DType::kFloat32, cpu_device());
  for (float& value : values.span<float>()) value = draw(random);
  if (tensor.is_same(values))
    tensor.mark_changed();
  else
    tensor.copy_from(values);
}

}  // namespace

void manual_seed(std::uint64_t seed) { this_threads_state = {seed, 0, 0}; }
RandomState random_state() { return this_threads_state; }
void set_random_state(const RandomState& state) { this_threads_state = state; }

DropoutDraw next_dropout() {
  RandomState& state = this_threads_state;
  return {state.seed, random_stream(RandomUse::kDropout, state.next_dropout++), this_threads_samples};
}
void set_sample_numbers(const SampleNumbers& numbers) {
  if (numbers.first < 0 || numbers.stride < 1)
    throw InvalidArgument("set_sample_numbers: got first {}, stride {}: first must be at least 0 and stride at least 1",
                          numbers.first, numbers.stride);
  this_threads_samples = numbers;
}
SampleNumbers sample_numbers() { return this_threads_samples; }
void set_first_sample(std::int64_t sample) {
  if (sample < 0) throw InvalidArgument("set_first_sample: {} is negative", sample);
  this_threads_samples = {sample, 1};
}
std::int64_t first_sample() { return this_threads_samples.first; }

void fill_uniform(const Tensor& tensor, float low, float high) {
  fill_from_next_stream(tensor, [=](Philox& random) { return random.uniform(low, high); });
}

void fill_normal(const Tensor& tensor, float mean, float standard_deviation) {
  fill_from_next_stream(tensor, [=](Philox& random) { return mean + standard_deviation * random.normal(); });
}

void fill_truncated_normal(const Tensor& tensor, float mean, float standard_deviation) {
  fill_from_next_stream(tensor, [=](Philox& random) {
    float value = random.normal();
    while (std::abs(value) > 2) value = random.normal();
    return mean + standard_deviation * value;
  });
}

}  // namespace lockstep
