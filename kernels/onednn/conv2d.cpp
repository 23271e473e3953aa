// Convolution: NHWC activations as they are, while oneDNN chooses the layout of the weights. Reordering them costs a
// hundredth of the convolution; its kernels for plain OHWI weights are several times slower.
//
// A thread keeps what it prepared, by shape: no locks, and after a shape's first step nothing is built or asked from the
// system.
#include <cstring>
#include <limits>
#include <list>
#include <optional>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/winograd.h"
#include "kernels/onednn/kernels.h"
#include "kernels/onednn/onednn.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

enum class Pass { kForward, kBackwardData, kBackwardWeights };

struct Key {
  Pass pass;
  Conv2dShape shape;
  bool bias, relu;
  int threads;  // a primitive is made for so many

  bool operator==(const Key&) const = default;
};

Desc plain(const Dims& dims, Tag tag) { return {dims, dnnl::memory::data_type::f32, tag}; }

// oneDNN names dimensions in this order whatever their order in memory.
Dims weight_dims(const Conv2dShape& s) { return {s.out_channels, s.in_channels, s.kernel_height, s.kernel_width}; }

ConvolutionDescs describe(const Key& key) {
  const Conv2dShape& s = key.shape;
  return {.x = plain({s.batch, s.in_channels, s.in_height, s.in_width}, Tag::nhwc),
          .weight = plain(weight_dims(s), Tag::any),
          .bias = key.bias ? plain({s.out_channels}, Tag::a) : Desc(),
          .y = plain({s.batch, s.out_channels, s.out_height, s.out_width}, Tag::nhwc),
          .strides = {s.stride_height, s.stride_width},
          .pad_begin = {s.pad_top, s.pad_left},
          .pad_end = {s.pad_bottom, s.pad_right}};
}

// A prepared pass: the primitive, and the way between the caller's OHWI weights and its own layout.
struct Plan {
  Key key;
  ConvolutionDescs descs;
  Desc caller_weight, own_weight, scratch;
  dnnl::primitive primitive;
  std::optional<dnnl::reorder> reorder;

  explicit Plan(const Key& wanted) : key(wanted), descs(describe(wanted)) {
    const auto attributes = with_user_scratchpad();
    caller_weight = plain(weight_dims(key.shape), Tag::ohwi);
    if (key.pass == Pass::kForward) {
      const auto desc = forward_desc(descs, key.relu ? with_relu(attributes) : attributes);
      prepare(desc, desc.weights_desc(), dnnl::convolution_forward(desc));
    } else if (key.pass == Pass::kBackwardData) {
      const auto desc = backward_data_desc(descs, attributes);
      prepare(desc, desc.weights_desc(), dnnl::convolution_backward_data(desc));
    } else {
      const auto desc = backward_weights_desc(descs, attributes);
      prepare(desc, desc.diff_weights_desc(), dnnl::convolution_backward_weights(desc));
    }
  }

 private:
  template <typename PrimitiveDesc>
  void prepare(const PrimitiveDesc& desc, const Desc& weight, const dnnl::primitive& made) {
    primitive = made;
    scratch = desc.scratchpad_desc();
    own_weight = weight;
    if (own_weight == caller_weight) return;
    const bool outwards = key.pass == Pass::kBackwardWeights;
    const Desc& from = outwards ? own_weight : caller_weight;
    const Desc& to = outwards ? caller_weight : own_weight;
    reorder = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
  }
};

// This thread's plans, the last used first; more than any network's layers, but not without bound.
// The key comes by value: GCC 14 suspects the result of pointing into a temporary that came by reference.
const Plan& plan_for(Key key) {
  constexpr std::size_t kMost = 256;
  thread_local std::list<Plan> plans;
  for (auto plan = plans.begin(); plan != plans.end(); ++plan)
    if (plan->key == key) {
      plans.splice(plans.begin(), plans, plan);
      return plans.front();
    }
  try {
    plans.emplace_front(key);
  } catch (const dnnl::error& error) {
    throw Error("conv2d: oneDNN cannot run x ({}, {}, {}, {}) by weight ({}, {}, {}, {}): {}", key.shape.batch, key.shape.in_height,
                key.shape.in_width, key.shape.in_channels, key.shape.out_channels, key.shape.kernel_height, key.shape.kernel_width,
                key.shape.in_channels, error.what());
  }
  if (plans.size() > kMost) plans.pop_back();
  return plans.front();
}

dnnl::stream& stream() {
  thread_local dnnl::stream stream(engine());
  return stream;
}

dnnl::memory memory_at(const Desc& desc, const void* data) { return {desc, engine(), const_cast<void*>(data)}; }

Buffer allocate(const Desc& desc) { return cpu_device().allocate(desc.get_size()); }

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

// Runs the plan with weights that flow in.
void run_with_weights(const Plan& plan, const float* weight, std::unordered_map<int, dnnl::memory> arguments) {
  Buffer reordered;
  if (plan.reorder) {
    reordered = allocate(plan.own_weight);
    auto from = memory_at(plan.caller_weight, weight);
    auto to = memory_at(plan.own_weight, reordered.data());
    plan.reorder->execute(stream(), from, to);
  }
  const Buffer scratch = allocate(plan.scratch);
  arguments[DNNL_ARG_WEIGHTS] = memory_at(plan.own_weight, plan.reorder ? floats(reordered) : weight);
  arguments[DNNL_ARG_SCRATCHPAD] = memory_at(plan.scratch, scratch.data());
  plan.primitive.execute(stream(), arguments);
  stream().wait();
}

// Where a gradient is computed: in the caller's memory, or aside when it is to be added to what is there.
class Target {
 public:
  Target(float* slot, std::int64_t count, bool accumulate, Stream& stream) : slot_(slot), count_(count), stream_(stream) {
    if (accumulate) aside_ = cpu_device().allocate(count * sizeof(float));
  }
  float* data() const { return aside_ ? floats(aside_) : slot_; }
  void finish() const {
    if (aside_) cpu_device().kernels().accumulate(slot_, floats(aside_), count_, stream_);
  }

 private:
  float* slot_;
  std::int64_t count_;
  Stream& stream_;
  Buffer aside_;
};

std::int64_t x_count(const Conv2dShape& s) { return s.batch * s.in_height * s.in_width * s.in_channels; }
std::int64_t y_count(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width * s.out_channels; }
std::int64_t weight_count(const Conv2dShape& s) { return s.out_channels * s.kernel_height * s.kernel_width * s.in_channels; }

// Whether no output can be NaN, as no operand is and no sum can grow beyond a float (rounded on its way: hence the half).
bool stays_finite(const Conv2dShape& s, const float* x, const float* weight, const float* bias) {
  const double products = static_cast<double>(s.kernel_height * s.kernel_width * s.in_channels) *
                          fast::largest_magnitude(weight, weight_count(s)) * fast::largest_magnitude(x, x_count(s));
  const double offset = bias == nullptr ? 0 : fast::largest_magnitude(bias, s.out_channels);
  return products + offset < std::numeric_limits<float>::max() / 2;
}

bool empty(const Conv2dShape& s) { return x_count(s) == 0 || y_count(s) == 0; }

}  // namespace

void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d(shape, x, weight, bias, relu, y, stream);
  if (winograd::suits(shape)) return winograd::conv2d(shape, x, weight, bias, relu, y);
  // oneDNN's relu makes 0 of NaN, and a broken model would seem whole. Reading x beforehand costs less than relu's own pass over y.
  const bool fused = relu && stays_finite(shape, x, weight, bias);
  const Threads all(compute_threads());
  const Plan& plan = plan_for({Pass::kForward, shape, bias != nullptr, fused, compute_threads()});
  std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, memory_at(plan.descs.x, x)},
                                                     {DNNL_ARG_DST, memory_at(plan.descs.y, y)}};
  if (bias != nullptr) arguments[DNNL_ARG_BIAS] = memory_at(plan.descs.bias, bias);
  run_with_weights(plan, weight, std::move(arguments));
  if (relu && !fused) cpu_device().kernels().relu(y, y, y_count(shape), stream);
}

void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d_backward_data(shape, y_grad, weight, x_grad, accumulate, stream);
  if (winograd::suits(shape)) return winograd::conv2d_backward_data(shape, y_grad, weight, x_grad, accumulate);
  const Threads all(compute_threads());
  const Plan& plan = plan_for({Pass::kBackwardData, shape, false, false, compute_threads()});
  const Target target(x_grad, x_count(shape), accumulate, stream);
  run_with_weights(plan, weight,
                   {{DNNL_ARG_DIFF_DST, memory_at(plan.descs.y, y_grad)}, {DNNL_ARG_DIFF_SRC, memory_at(plan.descs.x, target.data())}});
  target.finish();
}

namespace {

// A batch cut into parts that differ by one image at most. A weight's gradient is a sum over all images, which oneDNN would split by its
// number of threads: each part is summed by one thread, and the parts are added in their order.
class WeightGradients {
 public:
  WeightGradients(const Conv2dShape& shape, bool with_bias)
      : shape_(shape), parts_(parts_of(y_count(shape) / shape.out_channels * weight_count(shape), shape.batch)) {
    plan_.emplace(plan_of(shape_.batch / parts_, with_bias));
    longer_.emplace(plan_of((shape_.batch + parts_ - 1) / parts_, with_bias));
    if (plan_->own_weight == longer_->own_weight) return;  // else there is no one layout to add in
    parts_ = 1;
    plan_.emplace(plan_of(shape_.batch, with_bias));
  }

  // To where the caller wants them; a null `bias` was not asked for.
  void compute(const float* x, const float* y_grad, float* weight, float* bias) const {
    const Threads one(1);
    const std::int64_t weights = weight_floats(), biases = bias == nullptr ? 0 : shape_.out_channels;
    const Buffer sums = cpu_device().allocate((weights + biases) * sizeof(float));
    sum_of_parts(parts_, weights + biases, floats(sums), [&](std::int64_t part, float* to) {
      const std::int64_t first = begin(part), images = begin(part + 1) - first;
      run(images == plan_->key.shape.batch ? *plan_ : *longer_, x + first * (x_count(shape_) / shape_.batch),
          y_grad + first * (y_count(shape_) / shape_.batch), to, to + weights);
    });
    const auto from = memory_at(plan_->own_weight, sums.data()), to = memory_at(plan_->caller_weight, weight);
    if (plan_->reorder)
      plan_->reorder->execute(stream(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    else
      std::memcpy(weight, sums.data(), plan_->own_weight.get_size());
    stream().wait();
    if (bias != nullptr) std::memcpy(bias, floats(sums) + weights, biases * sizeof(float));
  }

 private:
  Plan plan_of(std::int64_t images, bool with_bias) const {
    const Threads one(1);
    Conv2dShape part = shape_;
    part.batch = images;
    return plan_for({Pass::kBackwardWeights, part, with_bias, false, 1});
  }

  static void run(const Plan& plan, const float* x, const float* y_grad, float* weight, float* bias) {
    const Threads one(1);
    const Buffer scratch = allocate(plan.scratch);
    std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, memory_at(plan.descs.x, x)},
                                                       {DNNL_ARG_DIFF_DST, memory_at(plan.descs.y, y_grad)},
                                                       {DNNL_ARG_DIFF_WEIGHTS, memory_at(plan.own_weight, weight)},
                                                       {DNNL_ARG_SCRATCHPAD, memory_at(plan.scratch, scratch.data())}};
    if (plan.key.bias) arguments[DNNL_ARG_DIFF_BIAS] = memory_at(plan.descs.bias, bias);
    plan.primitive.execute(stream(), arguments);
    stream().wait();
  }

  std::int64_t begin(std::int64_t part) const { return shape_.batch * part / parts_; }
  // Whole cache lines, so that every part's begin as well as the first's.
  std::int64_t weight_floats() const { return (static_cast<std::int64_t>(plan_->own_weight.get_size()) + 63) / 64 * 16; }

  Conv2dShape shape_;
  std::int64_t parts_;
  std::optional<Plan> plan_, longer_;
};

}  // namespace

void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& lane) {
  if (empty(shape))
    return reference_kernels().conv2d_backward_weights(shape, x, y_grad, weight_grad, bias_grad, accumulate_weight, accumulate_bias, lane);
  const bool with_bias = bias_grad != nullptr;
  if (winograd::suits(shape)) {
    winograd::conv2d_backward_weights(shape, x, y_grad, weight_grad, accumulate_weight);
    if (with_bias)
      cpu_device().kernels().bias_backward(y_grad, bias_grad, y_count(shape) / shape.out_channels, shape.out_channels, accumulate_bias,
                                           lane);
    return;
  }
  const Target weight_target(weight_grad, weight_count(shape), accumulate_weight, lane);
  const Target bias_target(bias_grad, shape.out_channels, with_bias && accumulate_bias, lane);
  WeightGradients(shape, with_bias).compute(x, y_grad, weight_target.data(), with_bias ? bias_target.data() : nullptr);
  weight_target.finish();
  bias_target.finish();
}

}  // namespace lockstep::onednn
