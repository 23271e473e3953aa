// Summaries of the recipe `classic` for TensorBoard, with the tutorial's tags.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "examples/cifar10/classic_net.h"

// Averages of the losses, like TensorFlow's ExponentialMovingAverage(0.9): each begins with its first value, also in a
// resumed run.
class LossAverages {
 public:
  void update(const std::vector<lockstep::train::NamedLoss>& losses);
  float of(const std::string& loss) const { return averages_.at(loss); }

 private:
  std::map<std::string, float> averages_;
};

struct StepSummary {
  std::int64_t step;
  float learning_rate;
  const std::vector<lockstep::train::NamedLoss>& losses;
  const LossAverages& averages;
  const lockstep::Tensor& images;  // of the step
};

// Writes the losses, raw and averaged, the learning rate, a histogram of each variable and its gradient, histograms of
// activations with their share of zeros, and the first images. Activations are computed again with the current weights.
// Does nothing on ranks without a writer.
void write_summary(lockstep::train::SummaryWriter& writer, ClassicNet& net, const StepSummary& summary);
