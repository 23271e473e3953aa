#include "lockstep/nn/loss.h"

#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::nn {

std::int64_t count_correct(const Tensor& logits, const Tensor& labels, std::int64_t ignore_index) {
  const std::size_t dims = logits.shape().dims();
  if (dims == 0 || logits.shape()[dims - 1] == 0 || labels.shape() != Shape(logits.shape().extents().first(dims - 1)))
    throw InvalidArgument("count_correct: logits (..., K) and labels (...) expected, got {} and {}",
                          logits.shape().text(), labels.shape().text());
  const NoGrad no_grad;
  const Tensor host_logits = cast(logits, DType::kFloat32).to(cpu_device()), host_labels = labels.to(cpu_device());
  logits.device().default_stream().synchronize();
  const auto values = host_logits.span<float>();
  const auto wanted = host_labels.span<std::int64_t>();
  const auto classes = static_cast<std::size_t>(logits.shape()[dims - 1]);
  std::int64_t correct = 0;
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    if (wanted[row] == ignore_index) continue;
    const auto scores = values.subspan(row * classes, classes);
    correct += std::max_element(scores.begin(), scores.end()) - scores.begin() == wanted[row];
  }
  return correct;
}

std::int64_t count_labels(const Tensor& labels, std::int64_t ignore_index) {
  if (!labels.defined() || labels.dtype() != DType::kInt64)
    throw InvalidArgument("count_labels: labels must be int64, got {}",
                          labels.defined() ? name_of(labels.dtype()) : "an undefined tensor");
  const Tensor host = labels.to(cpu_device());
  labels.device().default_stream().synchronize();
  const auto values = host.span<std::int64_t>();
  return static_cast<std::int64_t>(values.size()) - std::count(values.begin(), values.end(), ignore_index);
}

}  // namespace lockstep::nn
