// Runs kernels written for float32 on 16-bit floats: widens the operands, runs the kernel, and rounds the results once,
// to nearest. Slow but correct; it is the reference for a GPU's kernels, and lets the same program run on machines
// without one.
//
//   table.relu = any_float<relu>;
#pragma once

#include <tuple>

#include "lockstep/core/device.h"

namespace lockstep {

// Converts between float32, float16 and bfloat16; throws InvalidArgument for other types. Rounds to nearest, ties to
// even.
void widen(DType type, const void* in, float* out, std::int64_t count);
void narrow(DType type, const float* in, void* out, std::int64_t count);

constexpr bool is_half(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }

// An argument of a kernel, converted to float32; arguments other than views are unchanged.
template <typename T> struct Widened {
  static bool is_half(const T&) { return false; }
  explicit Widened(T argument) : argument(argument) {}
  T get() { return static_cast<T>(argument); }
  void finish() {}
  T argument;
};

struct WideMemory {
  Buffer memory;
  float* copy_of(DType type, const void* data, std::int64_t count) {
    memory = cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float));
    auto* const floats = reinterpret_cast<float*>(memory.data());
    widen(type, data, floats, count);
    return floats;
  }
};

template <> struct Widened<In> : WideMemory {
  static bool is_half(In view) { return view && lockstep::is_half(view.dtype); }
  explicit Widened(In view) : view(view) {
    if (is_half(view)) this->view = InputView(copy_of(view.dtype, view.data, view.count()), view.shape);
  }
  In get() const { return view; }
  void finish() {}
  InputView view;
};

template <> struct Widened<Out> : WideMemory {
  static bool is_half(Out view) { return view && lockstep::is_half(view.dtype); }
  explicit Widened(Out view)
      : original(view), view(view) {  // with the present values, because the kernel may add to them or change them
    if (is_half(view))
      this->view = OutputView(copy_of(view.dtype, view.data, view.count()), view.shape, view.accumulate);
  }
  Out get() const { return view; }
  void finish() {
    if (is_half(original)) narrow(original.dtype, view.floats(), original.data, original.count());
  }
  OutputView original, view;
};

template <auto kernel> struct AnyFloat;
template <typename... Arguments, void (*kernel)(Arguments...)> struct AnyFloat<kernel> {
  static void call(Arguments... arguments) {
    if (!(Widened<Arguments>::is_half(arguments) || ...)) return kernel(arguments...);
    std::tuple<Widened<Arguments>...> wide{Widened<Arguments>(arguments)...};
    std::apply([](auto&... each) { kernel(each.get()...); }, wide);
    std::apply([](auto&... each) { (each.finish(), ...); }, wide);
  }
};

template <auto kernel> inline constexpr auto any_float = &AnyFloat<kernel>::call;

}  // namespace lockstep
