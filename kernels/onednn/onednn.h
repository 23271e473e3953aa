// oneDNN for the kernels: only this header depends on the differences between version 2 (operation descriptors) and
// version 3 (none).
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>

#include "lockstep/core/device.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;

// The descriptors of one convolution; an empty `bias` means none.
struct ConvolutionDescs {
  Desc x, weight, bias, y;
  Dims strides, dilates, pad_begin, pad_end;  // dilations begin at 0
};

// Never destroyed, because buffers and plans of other threads may outlive static destruction.
inline const dnnl::engine& engine() {
  static const auto* const kEngine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *kEngine;
}

inline dnnl::stream& this_threads_stream() {
  thread_local dnnl::stream stream(engine());
  return stream;
}

inline dnnl::memory memory_at(const Desc& desc, const void* data) { return {desc, engine(), const_cast<void*>(data)}; }

// oneDNN uses as many threads as OpenMP would give to the calling thread: here `threads`, for the lifetime of this
// object. If oneDNN uses OpenMP, the functions are those of the runtime that it has loaded.
class Threads {
 public:
  explicit Threads(int threads) {
    if (get() != nullptr) before_ = get()();
    if (set() != nullptr) set()(threads);
  }
  ~Threads() {
    if (set() != nullptr && before_ > 0) set()(before_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  using Get = int (*)();
  using Set = void (*)(int);
  static Get get() {
    static const auto kFunction = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return kFunction;
  }
  static Set set() {
    static const auto kFunction = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return kFunction;
  }
  int before_ = 0;
};

// The number of parts, at most `most`, into which work with this many multiplications is cut. It depends only on the
// size, so that results do not depend on the number of threads.
inline std::int64_t parts_of(std::int64_t multiplications, std::int64_t most) {
  constexpr std::int64_t kWorthwhile = 4'000'000, kMost = 16;
  return std::clamp<std::int64_t>(multiplications / kWorthwhile, 1, std::clamp<std::int64_t>(most, 1, kMost));
}

// Scratch memory comes from the device's allocator, so that its statistics include it.
inline dnnl::primitive_attr with_user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// This ReLU turns NaN into 0.
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

inline dnnl::convolution_forward::primitive_desc forward_desc(const ConvolutionDescs& d,
                                                              const dnnl::primitive_attr& attributes) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return Forward::primitive_desc(engine(), kKind, kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.dilates,
                                 d.pad_begin, d.pad_end, attributes);
#else
  return {Forward::desc(kKind, kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.dilates, d.pad_begin, d.pad_end),
          attributes, engine()};
#endif
}

inline dnnl::matmul::primitive_desc matmul_desc(const Desc& a, const Desc& b, const Desc& c,
                                                const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine()};
#endif
}

// `hint` describes the forward pass.
inline dnnl::convolution_backward_data::primitive_desc backward_data_desc(const ConvolutionDescs& d,
                                                                          const ConvolutionDescs& hint,
                                                                          const dnnl::primitive_attr& attributes) {
  using Backward = dnnl::convolution_backward_data;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_desc(hint, attributes);
#if DNNL_VERSION_MAJOR >= 3
  return Backward::primitive_desc(engine(), kAlgorithm, d.x, d.weight, d.y, d.strides, d.dilates, d.pad_begin,
                                  d.pad_end, forward, attributes);
#else
  return {Backward::desc(kAlgorithm, d.x, d.weight, d.y, d.strides, d.dilates, d.pad_begin, d.pad_end), attributes,
          engine(), forward};
#endif
}

inline dnnl::convolution_backward_weights::primitive_desc backward_weights_desc(
    const ConvolutionDescs& d, const ConvolutionDescs& hint, const dnnl::primitive_attr& attributes) {
  using Backward = dnnl::convolution_backward_weights;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_desc(hint, attributes);
#if DNNL_VERSION_MAJOR >= 3
  return Backward::primitive_desc(engine(), kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.dilates, d.pad_begin,
                                  d.pad_end, forward, attributes);
#else
  return {Backward::desc(kAlgorithm, d.x, d.weight, d.bias, d.y, d.strides, d.dilates, d.pad_begin, d.pad_end),
          attributes, engine(), forward};
#endif
}

}  // namespace lockstep::onednn
