// Reductions, and the softmax of rows, which divides by a sum.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference/reference.h"
#include "kernels/strided_loop.h"

namespace lockstep::reference {

// -- sums over any dimensions, extremes with their positions, products

namespace {

template <typename Map> void sum_of(const Map& map, In x, float factor, Out y) {
  std::vector<double> sums(static_cast<std::size_t>(y.count()));
  const float* from = x.floats();
  const StridedLoop<1> loop(x.shape, {broadcast_strides(y.shape, x.shape)});
  for_each_outer(loop, 0, [&](const auto& at) { sums[static_cast<std::size_t>(at[0])] += map(double{*from++}); });
  for (Index i = 0; i < y.count(); ++i) store(y.floats()[i], sums[static_cast<std::size_t>(i)] * factor, y.accumulate);
}

void sum(In x, float factor, Out y, Stream&) {
  sum_of([](double value) { return value; }, x, factor, y);
}

void absolute_sum(bool squares, In x, float factor, Out y, Stream&) {
  sum_of([=](double value) { return squares ? value * value : std::abs(value); }, x, factor, y);
}

void prod(In x, Out y, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c) {
      double product = 1;
      for (Index i = 0; i < n; ++i) product *= x.floats()[(o * n + i) * inner + c];
      y.floats()[o * inner + c] = static_cast<float>(product);
    }
}

void prod_backward(In x, In y_grad, Out x_grad, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c) {
      const Index first = o * n * inner + c;
      double product = 1;  // of the factors that are not 0
      Index zeros = 0;
      for (Index i = 0; i < n; ++i) {
        const float factor = x.floats()[first + i * inner];
        zeros += factor == 0;
        if (factor != 0) product *= factor;
      }
      for (Index i = 0; i < n; ++i) {
        const double factor = x.floats()[first + i * inner];
        const double others = zeros == 0 ? product / factor : zeros == 1 && factor == 0 ? product : 0;
        store(x_grad.floats()[first + i * inner], others * y_grad.floats()[o * inner + c], x_grad.accumulate);
      }
    }
}

template <bool is_min> void extreme(In x, Out values, Out indices, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  float* value = values.floats();
  auto* place = indices.as<std::int64_t>();
  for (Index o = 0; o < outer; ++o)
    for (Index c = 0; c < inner; ++c, ++value, ++place) {
      const float* const line = x.floats() + o * n * inner + c;
      *place = 0;
      for (Index i = 1; i < n; ++i) {
        const float best = line[*place * inner], next = line[i * inner];
        if ((is_min ? next < best : next > best) || (std::isnan(next) && !std::isnan(best))) *place = i;
      }
      *value = line[*place * inner];
    }
}

}  // namespace

void use_reduction(KernelTable& table) {
  table.sum = any_float<sum>;
  table.absolute_sum = any_float<absolute_sum>;
  table.max = any_float<extreme<false>>;
  table.min = any_float<extreme<true>>;
  table.prod = any_float<prod>;
  table.prod_backward = any_float<prod_backward>;
}

// -- softmax of rows, and its logarithm

namespace {

void softmax(In in, bool log, Out out, Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float* const x = in.floats() + n * channels;
    const double largest = *std::max_element(x, x + channels);
    double sum = 0;
    for (Index c = 0; c < channels; ++c) sum += std::exp(x[c] - largest);
    for (Index c = 0; c < channels; ++c)
      out.floats()[n * channels + c] =
          static_cast<float>(log ? x[c] - largest - std::log(sum) : std::exp(x[c] - largest) / sum);
  }
}

void softmax_backward(In out, In out_grad, bool log, Out x_grad, Stream&) {
  const Index rows = out.shape[0], channels = out.shape[1];
  for (Index n = 0; n < rows; ++n) {
    const float *const y = out.floats() + n * channels, *const grad = out_grad.floats() + n * channels;
    double sum = 0;
    for (Index c = 0; c < channels; ++c) sum += log ? grad[c] : static_cast<double>(grad[c]) * y[c];
    for (Index c = 0; c < channels; ++c)
      store(x_grad.floats()[n * channels + c],
            log ? grad[c] - std::exp(static_cast<double>(y[c])) * sum : y[c] * (grad[c] - sum), x_grad.accumulate);
  }
}

}  // namespace

void use_softmax(KernelTable& table) {
  table.softmax = any_float<softmax>;
  table.softmax_backward = any_float<softmax_backward>;
}

}  // namespace lockstep::reference
