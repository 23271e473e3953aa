// How the values of a tensor are spread, as TensorBoard's HistogramProto says it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::events {

struct Histogram {
  double min = 0, max = 0, sum = 0, sum_of_squares = 0;  // of the finite values; 0 when there is none
  std::int64_t finite = 0, not_finite = 0;
  std::vector<double> limits,
      counts;  // counts[i]: values in [limits[i - 1], limits[i]); from the bucket of min to that of max
};

// Of a tensor on the CPU, of any type. `buckets`: of equal width from min to max, as TensorBoard's own histogram
// summaries have them; 0: TensorFlow's, whose limits are 0 and +-1e-12 * 1.1^k below 1e20. Runs of empty buckets are
// one.
Histogram histogram_of(const Tensor& values, int buckets);

// Each element as a number, in order. The tensor is on the CPU.
void for_each_number(const Tensor& tensor, const std::function<void(double)>& visit);

}  // namespace lockstep::events
