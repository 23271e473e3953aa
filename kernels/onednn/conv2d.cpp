// Convolution: activations stay NHWC, while oneDNN chooses the layout of the weights. Reordering them costs a hundredth
// of the convolution, while its kernels for plain OHWI weights are several times slower.
//
// A thread keeps prepared primitives by shape: there are no locks, and after the first step with a shape nothing is
// built and no memory is requested from the system.
#include <algorithm>
#include <cstring>
#include <limits>
#include <list>
#include <optional>
#include <vector>

#include "kernels/cpu/loops/fast.h"
#include "kernels/onednn/onednn.h"
#include "kernels/onednn/onednn_kernels.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

enum class Pass { kForward, kBackwardData, kBackwardWeights };

struct Key {
  Pass pass;
  Conv2dShape shape;
  bool bias, relu;

  bool operator==(const Key&) const = default;
};

Desc plain(const Dims& dims, Tag tag) { return {dims, dnnl::memory::data_type::f32, tag}; }

// oneDNN lists dimensions in this order whatever their order in memory.
Dims weight_dims(const Conv2dShape& s) {
  if (s.groups > 1) return {s.groups, s.group_filters(), s.group_channels(), s.kernel_height, s.kernel_width};
  return {s.out_channels, s.in_channels, s.kernel_height, s.kernel_width};
}

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

// A prepared pass: the primitive, and the reorders between the caller's OHWI weights and its own layout.
struct Plan {
  Key key;
  ConvolutionDescs descs;
  Desc caller_weight, own_weight, scratch;
  dnnl::primitive primitive;
  std::optional<dnnl::reorder> reorder;

  explicit Plan(const Key& wanted) : key(wanted), descs(describe(wanted)) {
    const auto attributes = with_user_scratchpad();
    caller_weight = plain(weight_dims(key.shape), key.shape.groups > 1 ? Tag::gohwi : Tag::ohwi);
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

// This thread's plans, the most recently used first; bounded, but more than any network has layers. The key is passed
// by value, because GCC 14 otherwise suspects that the result points into a temporary.
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
    throw Error("conv2d: oneDNN cannot run x ({}, {}, {}, {}) by weight ({}, {}, {}, {}): {}", key.shape.batch,
                key.shape.in_height, key.shape.in_width, key.shape.in_channels, key.shape.out_channels,
                key.shape.kernel_height, key.shape.kernel_width, key.shape.group_channels(), error.what());
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

// The memory in which a gradient is computed: the caller's, or separate memory if it must be added to present values.
class Target {
 public:
  Target(float* slot, std::int64_t count, bool accumulate, Stream& stream)
      : slot_(slot), count_(count), stream_(stream) {
    if (accumulate) aside_ = cpu_device().allocate(count * sizeof(float));
  }
  float* data() const { return aside_ ? floats(aside_) : slot_; }
  void finish() const {
    if (aside_) cpu_device().kernels().add({slot_, {count_}}, {floats(aside_), {count_}}, {slot_, {count_}}, stream_);
  }

 private:
  float* slot_;
  std::int64_t count_;
  Stream& stream_;
  Buffer aside_;
};

std::int64_t x_count(const Conv2dShape& s) { return s.batch * s.in_height * s.in_width * s.in_channels; }
std::int64_t y_count(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width * s.out_channels; }
std::int64_t weight_count(const Conv2dShape& s) {
  return s.out_channels * s.kernel_height * s.kernel_width * s.group_channels();
}

float largest_magnitude(const float* x, std::int64_t count) {
  constexpr std::int64_t kPart = std::int64_t{1} << 18;
  std::vector<float> parts(static_cast<std::size_t>((count + kPart - 1) / kPart));
  in_parallel(static_cast<std::int64_t>(parts.size()), [&](std::int64_t part) {
    parts[static_cast<std::size_t>(part)] =
        fast::largest_magnitude(x + part * kPart, std::min(kPart, count - part * kPart));
  });
  return fast::largest_magnitude(parts.data(), static_cast<std::int64_t>(parts.size()));
}

// Reading x costs less than reading y once more only if y is not much smaller.
bool is_worth_fusing(const Conv2dShape& s) { return x_count(s) <= 2 * y_count(s); }

// True if no output can be NaN, because no operand is and no sum can exceed a float's range (intermediate rounding:
// hence the half).
bool stays_finite(const Conv2dShape& s, const float* x, const float* weight, const float* bias) {
  const double products = static_cast<double>(s.kernel_height * s.kernel_width * s.group_channels()) *
                          largest_magnitude(weight, weight_count(s)) * largest_magnitude(x, x_count(s));
  const double offset = bias == nullptr ? 0 : fast::largest_magnitude(bias, s.out_channels);
  return products + offset < std::numeric_limits<float>::max() / 2;
}

std::int64_t pixels(const Conv2dShape& s) { return s.batch * s.out_height * s.out_width; }

// Each part of a weight gradient computes a full gradient, which is then added; for few pixels that costs more than it
// gains.
std::int64_t most_parts(Pass pass, const Conv2dShape& s) {
  constexpr std::int64_t kPixelsOfASum = 256;
  return pass == Pass::kBackwardWeights ? std::min(s.batch, pixels(s) / kPixelsOfASum) : s.batch;
}

// oneDNN 2.6 writes beyond its scratch memory if a 1x1 convolution with strides has fewer channels than a vector has
// lanes: it gathers the pixels as if there were as many channels as lanes.
std::size_t scratch_slack(const Conv2dShape& s) {
  const bool gathers = s.kernel_height == 1 && s.kernel_width == 1 && (s.stride_height > 1 || s.stride_width > 1);
  return gathers ? static_cast<std::size_t>(s.out_height * s.out_width) * 16 * sizeof(float) : 0;
}

void run(const Plan& plan, std::unordered_map<int, dnnl::memory> arguments) {
  const Buffer scratch = cpu_device().allocate(plan.scratch.get_size() + scratch_slack(plan.key.shape));
  arguments[DNNL_ARG_SCRATCHPAD] = memory_at(plan.scratch, scratch.data());
  plan.primitive.execute(stream(), arguments);
  stream().wait();
}

// A pass over a batch, cut into parts whose sizes differ by at most one image. Each part runs on one thread, because
// with several threads oneDNN cuts sums depending on their number.
class Parts {
 public:
  explicit Parts(const Key& whole)
      : shape_(whole.shape), count_(parts_of(pixels(shape_) * weight_count(shape_), most_parts(whole.pass, shape_))) {
    plan_.emplace(plan_of(whole, shape_.batch / count_));
    if (shape_.batch % count_ == 0) return;
    longer_.emplace(plan_of(whole, shape_.batch / count_ + 1));
    if (plan_->own_weight == longer_->own_weight) return;
    count_ = 1;  // otherwise there would be two layouts of the weights
    plan_.emplace(plan_of(whole, shape_.batch));
  }

  std::int64_t count() const { return count_; }
  const Plan& plan() const { return *plan_; }
  const Plan& plan(std::int64_t part) const {
    return begin(part + 1) - begin(part) == plan_->key.shape.batch ? *plan_ : *longer_;
  }
  std::int64_t begin(std::int64_t part) const { return shape_.batch * part / count_; }

 private:
  static Plan plan_of(Key key, std::int64_t images) {
    const Threads one(1);
    key.shape.batch = images;
    return plan_for(key);
  }

  Conv2dShape shape_;
  std::int64_t count_;
  std::optional<Plan> plan_, longer_;
};

// Runs all parts with the weights as input; `arguments_of` returns the other arguments of a part, given its first
// image.
template <typename ArgumentsOf>
void run_with_weights(const Parts& parts, const float* weight, const ArgumentsOf& arguments_of) {
  const Threads one(1);
  const Plan& plan = parts.plan();
  Buffer reordered;
  if (plan.reorder) {
    reordered = allocate(plan.own_weight);
    auto from = memory_at(plan.caller_weight, weight);
    auto to = memory_at(plan.own_weight, reordered.data());
    plan.reorder->execute(stream(), from, to);
    stream().wait();
  }
  in_parallel(parts.count(), [&](std::int64_t part) {
    const Threads one_here(1);
    std::unordered_map<int, dnnl::memory> arguments = arguments_of(parts.plan(part), parts.begin(part));
    arguments[DNNL_ARG_WEIGHTS] = memory_at(plan.own_weight, plan.reorder ? floats(reordered) : weight);
    run(parts.plan(part), std::move(arguments));
  });
}

// Stores the gradients of weights and biases in the caller's memory; a null `bias` is not wanted. They are sums over
// all images: the sums of the parts are added in their order.
void sum_weight_gradients(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight, float* bias) {
  const Threads one(1);
  const Parts parts({Pass::kBackwardWeights, shape, bias != nullptr, false});
  const Plan& plan = parts.plan();
  // Rounded up to cache lines, so that every part has the alignment of the first.
  const std::int64_t weights = (static_cast<std::int64_t>(plan.own_weight.get_size()) + 63) / 64 * 16;
  const std::int64_t biases = bias == nullptr ? 0 : shape.out_channels;
  const Buffer sums = cpu_device().allocate((weights + biases) * sizeof(float));
  sum_of_parts(parts.count(), weights + biases, floats(sums), [&](std::int64_t part, float* to) {
    const Threads one_here(1);
    const Plan& own = parts.plan(part);
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory_at(own.descs.x, x + parts.begin(part) * (x_count(shape) / shape.batch))},
        {DNNL_ARG_DIFF_DST, memory_at(own.descs.y, y_grad + parts.begin(part) * (y_count(shape) / shape.batch))},
        {DNNL_ARG_DIFF_WEIGHTS, memory_at(own.own_weight, to)}};
    if (bias != nullptr) arguments[DNNL_ARG_DIFF_BIAS] = memory_at(own.descs.bias, to + weights);
    run(own, std::move(arguments));
  });
  if (plan.reorder) {
    auto from = memory_at(plan.own_weight, sums.data()), to = memory_at(plan.caller_weight, weight);
    plan.reorder->execute(stream(), from, to);
    stream().wait();
  } else {
    std::memcpy(weight, sums.data(), plan.own_weight.get_size());
  }
  if (bias != nullptr) std::memcpy(bias, floats(sums) + weights, biases * sizeof(float));
}

}  // namespace

void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  // oneDNN's ReLU turns NaN into 0, which would hide a broken model. Reading x first to check costs less than a
  // separate ReLU pass over y.
  const bool fused = relu && is_worth_fusing(shape) && stays_finite(shape, x, weight, bias);
  run_with_weights(Parts({Pass::kForward, shape, bias != nullptr, fused}), weight,
                   [&](const Plan& plan, std::int64_t first) {
                     std::unordered_map<int, dnnl::memory> arguments = {
                         {DNNL_ARG_SRC, memory_at(plan.descs.x, x + first * (x_count(shape) / shape.batch))},
                         {DNNL_ARG_DST, memory_at(plan.descs.y, y + first * (y_count(shape) / shape.batch))}};
                     if (bias != nullptr) arguments[DNNL_ARG_BIAS] = memory_at(plan.descs.bias, bias);
                     return arguments;
                   });
  const Shape all = {y_count(shape)};
  if (relu && !fused) cpu_device().kernels().relu({y, all}, {y, all}, cpu_device().default_stream());
}

void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  const Target target(x_grad, x_count(shape), accumulate, cpu_device().default_stream());
  run_with_weights(
      Parts({Pass::kBackwardData, shape, false, false}), weight, [&](const Plan& plan, std::int64_t first) {
        return std::unordered_map<int, dnnl::memory>{
            {DNNL_ARG_DIFF_DST, memory_at(plan.descs.y, y_grad + first * (y_count(shape) / shape.batch))},
            {DNNL_ARG_DIFF_SRC, memory_at(plan.descs.x, target.data() + first * (x_count(shape) / shape.batch))}};
      });
  target.finish();
}

void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad) {
  Stream& stream = cpu_device().default_stream();
  const Target weight_target(weight_grad.floats(), weight_count(shape), weight_grad.accumulate, stream);
  const Target bias_target(bias_grad.floats(), shape.out_channels, bias_grad && bias_grad.accumulate, stream);
  sum_weight_gradients(shape, x, y_grad, weight_target.data(), bias_grad ? bias_target.data() : nullptr);
  weight_target.finish();
  bias_target.finish();
}

}  // namespace lockstep::onednn
