// The operands of convolutions and linear layers.
#pragma once

#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

inline InputView in(Bench& b, const Shape& shape, unsigned seed, Place place = Place::kAligned) {
  return b.in(shape, uniform(shape.count(), seed), place);
}
inline OutputView out(Bench& b, const Shape& shape, unsigned seed, bool accumulate = false,
                      Place place = Place::kAligned) {
  return b.out(shape, uniform(shape.count(), seed), accumulate, place);
}
inline OutputView floats_out(Bench& b, const Shape& shape, unsigned seed, bool accumulate, Place place) {
  return b.floats_out(shape, uniform(shape.count(), seed), accumulate, place);
}

// The values of uniform(), but the first image or row is NaN.
inline InputView broken_at_first(Bench& b, const Shape& shape) {
  Floats values = uniform(shape.count(), 1);
  std::fill_n(values.begin(), shape.count() / shape[0], kNan);
  return b.in(shape, values);
}

// The size of all three operands; those that a backward pass computes for parameters are float32.
template <typename LayerShape> double bytes_of(const Cases& cases, const LayerShape& s, bool float32_weights) {
  const auto activations = static_cast<double>(x_shape(s).count() + y_shape(s).count());
  return cases.element_bytes() * activations +
         (float32_weights ? 4 : cases.element_bytes()) * static_cast<double>(weight_shape(s).count());
}
inline double flops_of(const LinearShape& s) {
  return 2.0 * static_cast<double>(x_shape(s).count()) * static_cast<double>(s.out_features);
}
inline double flops_of(const Conv2dShape& s) {
  return 2.0 * static_cast<double>(s.batch * s.out_height * s.out_width) * static_cast<double>(weight_shape(s).count());
}

}  // namespace lockstep::testing::cases
