#include "lockstep/nn/loss.h"

#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::nn {

std::int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  if (logits.shape().dims() != 2 || labels.shape() != Shape{logits.shape()[0]} || logits.shape()[1] == 0)
    throw InvalidArgument("count_correct: logits (N, K) and labels (N) expected, got {} and {}", logits.shape().text(),
                          labels.shape().text());
  const NoGrad no_grad;
  const Tensor host_logits = cast(logits, DType::kFloat32).to(cpu_device()), host_labels = labels.to(cpu_device());
  logits.device().default_stream().synchronize();
  const auto values = host_logits.span<float>();
  const auto wanted = host_labels.span<std::int64_t>();
  const auto classes = static_cast<std::size_t>(logits.shape()[1]);
  std::int64_t correct = 0;
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    const auto scores = values.subspan(row * classes, classes);
    correct += std::max_element(scores.begin(), scores.end()) - scores.begin() == wanted[row];
  }
  return correct;
}

}  // namespace lockstep::nn
