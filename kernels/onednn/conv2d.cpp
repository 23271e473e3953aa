// Convolution: activations stay NHWC, while oneDNN chooses the layout of the weights. Reordering them costs a hundredth
// of the convolution, while its kernels for plain OHWI weights are several times slower.
//
// A thread keeps prepared primitives by shape: there are no locks, and after the first step with a shape nothing is
// built and no memory is requested from the system.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/any_float.h"
#include "kernels/onednn/onednn.h"
#include "kernels/onednn/onednn_kernels.h"
#include "kernels/onednn/recent_plan.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

enum class Pass { kForward, kBackwardData, kBackwardWeights };

struct Key {
  Pass pass;
  Conv2dShape shape;
  DType type;      // of activations and weights
  DType gradient;  // of a backward pass's result
  bool bias, relu;

  bool operator==(const Key&) const = default;
};

Desc plain(const Dims& dims, Tag tag, DType type) {
  return {dims, type == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32, tag};
}

// oneDNN lists dimensions in this order whatever their order in memory.
Dims weight_dims(const Conv2dShape& s) {
  if (s.groups > 1) return {s.groups, s.group_filters(), s.group_channels(), s.kernel_height, s.kernel_width};
  return {s.out_channels, s.in_channels, s.kernel_height, s.kernel_width};
}

// Types of x, and of weights and biases.
ConvolutionDescs describe(const Key& key, DType x, DType weight) {
  const Conv2dShape& s = key.shape;
  return {.x = plain({s.batch, s.in_channels, s.in_height, s.in_width}, Tag::nhwc, x),
          .weight = plain(weight_dims(s), Tag::any, weight),
          .bias = key.bias ? plain({s.out_channels}, Tag::a, weight) : Desc(),
          .y = plain({s.batch, s.out_channels, s.out_height, s.out_width}, Tag::nhwc, key.type),
          .strides = {s.stride_height, s.stride_width},
          .dilates = {s.dilation_height - 1, s.dilation_width - 1},
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

  explicit Plan(const Key& wanted)
      : key(wanted),
        descs(
            describe(wanted, wanted.pass == Pass::kBackwardData ? wanted.gradient : wanted.type, weight_type(wanted))) {
    const auto attributes = with_user_scratchpad();
    const ConvolutionDescs hint = describe(key, key.type, key.type);
    caller_weight = plain(weight_dims(key.shape), key.shape.groups > 1 ? Tag::gohwi : Tag::ohwi, weight_type(key));
    if (key.pass == Pass::kForward) {
      const auto desc = forward_desc(descs, key.relu ? with_relu(attributes) : attributes);
      prepare(desc, desc.weights_desc(), dnnl::convolution_forward(desc));
    } else if (key.pass == Pass::kBackwardData) {
      const auto desc = backward_data_desc(descs, hint, attributes);
      prepare(desc, desc.weights_desc(), dnnl::convolution_backward_data(desc));
    } else {
      const auto desc = backward_weights_desc(descs, hint, attributes);
      prepare(desc, desc.diff_weights_desc(), dnnl::convolution_backward_weights(desc));
    }
  }

 private:
  static DType weight_type(const Key& key) { return key.pass == Pass::kBackwardWeights ? key.gradient : key.type; }

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

const Plan& plan_for(Key key) {
  try {
    return recent_plan<Plan>(key);
  } catch (const dnnl::error& error) {
    throw Error("conv2d: oneDNN cannot run x ({}, {}, {}, {}) by weight ({}, {}, {}, {}): {}", key.shape.batch,
                key.shape.in_height, key.shape.in_width, key.shape.in_channels, key.shape.out_channels,
                key.shape.kernel_height, key.shape.kernel_width, key.shape.group_channels(), error.what());
  }
}

Buffer allocate(const Desc& desc) { return cpu_device().allocate(desc.get_size()); }

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

// The memory in which a gradient is computed: the caller's, or floats that are added to its present values.
class Target {
 public:
  explicit Target(Out slot) : slot_(slot.data, slot.dtype, {slot.count()}, slot.accumulate) {
    if (slot && slot.accumulate) aside_ = cpu_device().allocate(slot.count() * sizeof(float));
  }
  DType type() const { return aside_ ? DType::kFloat32 : slot_.dtype; }
  void* data() const { return aside_ ? floats(aside_) : slot_.data; }
  void finish() const {
    if (!aside_) return;
    const InputView added(floats(aside_), slot_.shape);
    if (is_half(slot_.dtype)) return cpu_device().kernels().convert(added, slot_, cpu_device().default_stream());
    cpu_device().kernels().add(slot_, added, slot_, cpu_device().default_stream());
  }

 private:
  OutputView slot_;
  Buffer aside_;
};

// The image `first` of a view.
const void* image(const void* data, DType type, std::int64_t elements, std::int64_t first) {
  return static_cast<const std::byte*>(data) + first * elements * static_cast<std::int64_t>(size_of(type));
}

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
  plan.primitive.execute(this_threads_stream(), arguments);
  this_threads_stream().wait();
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
void run_with_weights(const Parts& parts, const void* weight, const ArgumentsOf& arguments_of) {
  const Threads one(1);
  const Plan& plan = parts.plan();
  Buffer reordered;
  if (plan.reorder) {
    reordered = allocate(plan.own_weight);
    auto from = memory_at(plan.caller_weight, weight);
    auto to = memory_at(plan.own_weight, reordered.data());
    plan.reorder->execute(this_threads_stream(), from, to);
    this_threads_stream().wait();
  }
  in_parallel(parts.count(), [&](std::int64_t part) {
    const Threads one_here(1);
    std::unordered_map<int, dnnl::memory> arguments = arguments_of(parts.plan(part), parts.begin(part));
    arguments[DNNL_ARG_WEIGHTS] = memory_at(plan.own_weight, plan.reorder ? reordered.data() : weight);
    run(parts.plan(part), std::move(arguments));
  });
}

// Stores the gradients of weights and biases in the caller's memory; a null `bias` is not wanted. They are sums over
// all images: the sums of the parts are added in their order.
void sum_weight_gradients(const Conv2dShape& shape, In x, In y_grad, void* weight, void* bias) {
  const Threads one(1);
  const Parts parts({Pass::kBackwardWeights, shape, x.dtype, DType::kFloat32, bias != nullptr, false});
  const Plan& plan = parts.plan();
  // Rounded up to cache lines, so that every part has the alignment of the first.
  const std::int64_t weights = (static_cast<std::int64_t>(plan.own_weight.get_size()) + 63) / 64 * 16;
  const std::int64_t biases = bias == nullptr ? 0 : shape.out_channels;
  const Buffer sums = cpu_device().allocate((weights + biases) * sizeof(float));
  sum_of_parts(parts.count(), weights + biases, floats(sums), [&](std::int64_t part, float* to) {
    const Threads one_here(1);
    const Plan& own = parts.plan(part);
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory_at(own.descs.x, image(x.data, x.dtype, x_count(shape) / shape.batch, parts.begin(part)))},
        {DNNL_ARG_DIFF_DST,
         memory_at(own.descs.y, image(y_grad.data, x.dtype, y_count(shape) / shape.batch, parts.begin(part)))},
        {DNNL_ARG_DIFF_WEIGHTS, memory_at(own.own_weight, to)}};
    if (bias != nullptr) arguments[DNNL_ARG_DIFF_BIAS] = memory_at(own.descs.bias, to + weights);
    run(own, std::move(arguments));
  });
  if (plan.reorder) {
    auto from = memory_at(plan.own_weight, sums.data()), to = memory_at(plan.caller_weight, weight);
    plan.reorder->execute(this_threads_stream(), from, to);
    this_threads_stream().wait();
  } else {
    std::memcpy(weight, sums.data(), plan.own_weight.get_size());
  }
  if (bias != nullptr) std::memcpy(bias, floats(sums) + weights, biases * sizeof(float));
}

}  // namespace

void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y) {
  // oneDNN's ReLU turns NaN into 0, which would hide a broken model. Reading x first to check costs less than a
  // separate ReLU pass over y.
  const bool fused = relu && !is_half(x.dtype) && is_worth_fusing(shape) &&
                     stays_finite(shape, x.floats(), weight.floats(), bias.floats());
  const Parts parts({Pass::kForward, shape, x.dtype, x.dtype, static_cast<bool>(bias), fused});
  run_with_weights(parts, weight.data, [&](const Plan& plan, std::int64_t first) {
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory_at(plan.descs.x, image(x.data, x.dtype, x_count(shape) / shape.batch, first))},
        {DNNL_ARG_DST, memory_at(plan.descs.y, image(y.data, y.dtype, y_count(shape) / shape.batch, first))}};
    if (bias) arguments[DNNL_ARG_BIAS] = memory_at(plan.descs.bias, bias.data);
    return arguments;
  });
  if (relu && !fused) cpu_device().kernels().relu(y, y, cpu_device().default_stream());
}

void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad) {
  const Target target(x_grad);
  const Parts parts({Pass::kBackwardData, shape, y_grad.dtype, target.type(), false, false});
  run_with_weights(parts, weight.data, [&](const Plan& plan, std::int64_t first) {
    return std::unordered_map<int, dnnl::memory>{
        {DNNL_ARG_DIFF_DST,
         memory_at(plan.descs.y, image(y_grad.data, y_grad.dtype, y_count(shape) / shape.batch, first))},
        {DNNL_ARG_DIFF_SRC,
         memory_at(plan.descs.x, image(target.data(), target.type(), x_count(shape) / shape.batch, first))}};
  });
  target.finish();
}

void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad) {
  LOCKSTEP_CHECK(weight_grad.dtype == DType::kFloat32 && bias_grad.dtype == DType::kFloat32,
                 "gradients of weights are float32");
  const Target weight_target(weight_grad), bias_target(bias_grad);
  sum_weight_gradients(shape, x, y_grad, weight_target.data(), bias_grad ? bias_target.data() : nullptr);
  weight_target.finish();
  bias_target.finish();
}

}  // namespace lockstep::onednn
