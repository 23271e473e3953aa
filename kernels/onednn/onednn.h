// oneDNN as the kernels see it: the one place that knows how the versions 2 (operation descriptors) and 3 (none) differ.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <thread>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"

namespace lockstep::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;

// The descriptors of one convolution; an empty `bias` means none.
struct ConvolutionDescs {
  Desc x, weight, bias, y;
  Dims strides, pad_begin, pad_end;
};

// Never destroyed: buffers and plans of other threads may outlive static destruction.
inline const dnnl::engine& engine() {
  static const auto* const kEngine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *kEngine;
}

// Whether this process computes with a single thread: kernels of our own that have but one are considered only then.
inline bool has_one_thread() {
  static const bool kOneThread = [] {
    const auto threads = env::text("OMP_NUM_THREADS");  // a number, or a list of them of which the first counts
    if (!threads) return std::thread::hardware_concurrency() == 1;
    return threads->substr(0, threads->find(',')) == "1";
  }();
  return kOneThread;
}

// Scratch memory comes from the device's allocator, whose statistics then show all of it.
inline dnnl::primitive_attr with_user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// Of NaN this relu makes 0.
inline dnnl::primitive_attr with_relu(dnnl::primitive_attr attributes) {
  dnnl::post_ops operations;
#if DNNL_VERSION_MAJOR >= 3
  operations.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
#else
  operations.append_eltwise(1, dnnl::algorithm::eltwise_relu, 0, 0);
#endif
  attributes.set_post_ops(operations);
  return attributes;
}

inline dnnl::convolution_forward::primitive_desc forward_desc(const ConvolutionDescs& d, const dnnl::primitive_attr& attributes) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return Forward::primitive_desc(engine(), kKind, kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.pad_begin, d.pad_end, attributes);
#else
  return {Forward::desc(kKind, kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.pad_begin, d.pad_end), attributes, engine()};
#endif
}

inline dnnl::convolution_backward_data::primitive_desc backward_data_desc(const ConvolutionDescs& d,
                                                                          const dnnl::primitive_attr& attributes) {
  using Backward = dnnl::convolution_backward_data;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_desc(d, attributes);
#if DNNL_VERSION_MAJOR >= 3
  return Backward::primitive_desc(engine(), kAlgorithm, d.x, d.weight, d.y, d.strides, d.pad_begin, d.pad_end, forward, attributes);
#else
  return {Backward::desc(kAlgorithm, d.x, d.weight, d.y, d.strides, d.pad_begin, d.pad_end), attributes, engine(), forward};
#endif
}

inline dnnl::convolution_backward_weights::primitive_desc backward_weights_desc(const ConvolutionDescs& d,
                                                                                const dnnl::primitive_attr& attributes) {
  using Backward = dnnl::convolution_backward_weights;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_desc(d, attributes);
#if DNNL_VERSION_MAJOR >= 3
  return Backward::primitive_desc(engine(), kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.pad_begin, d.pad_end, forward, attributes);
#else
  return {Backward::desc(kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.pad_begin, d.pad_end), attributes, engine(), forward};
#endif
}

}  // namespace lockstep::onednn
