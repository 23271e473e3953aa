#include "examples/lib/training.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/metrics.h"

namespace lockstep::examples {

Score score_of(nn::Module& net, const data::Dataset& test, Device& device) {
  train::Accuracy accuracy;
  train::Mean loss(train::cross_entropy_of_samples);
  const std::int64_t samples = train::evaluate(net, test, {&accuracy, &loss}, {.device = &device});
  return {accuracy.value(), loss.value(), samples};
}

std::string Score::text(const char* part) const {
  return fmt::format("accuracy {:.4f} on {} {} samples, loss {:.3f}", accuracy, samples, part, loss);
}

}  // namespace lockstep::examples
