// The distribution of a tensor's values in the form of TensorBoard's HistogramProto.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::train::events {

struct Histogram {
  double min = 0, max = 0, sum = 0, sum_of_squares = 0;  // over the finite values; 0 if there is none
  std::int64_t finite = 0, not_finite = 0;
  // counts[i]: values in [limits[i - 1], limits[i]), from min's bucket to max's.
  std::vector<double> limits, counts;
};

// `values` is a CPU tensor of any type. `buckets`: that many of equal width from min to max, as in TensorBoard's
// histogram summaries; 0: TensorFlow's limits, 0 and +-1e-12 * 1.1^k below 1e20. Consecutive empty buckets are merged.
Histogram histogram_of(const Tensor& values, int buckets);

// Visits each element in order as a number. The tensor must be on the CPU.
void for_each_number(const Tensor& tensor, const std::function<void(double)>& visit);

}  // namespace lockstep::train::events
