// The networks that bench/train_step times, with a batch of generated samples for each, and the optimizers that the
// peers use with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::bench {

struct TrainStepModel {
  std::unique_ptr<nn::Module> module;  // on the CPU, with freshly drawn parameters
  std::int64_t batch;                  // samples per step and rank
  Tensor inputs, labels;               // of one step, on the CPU; labels: the logits' shape without the classes
};

// cifar10, cifar10-nolrn  TensorFlow's tutorial network, with LRN and without: 128 images of 24x24, SGD 0.01
// mlp                     four hidden layers of 2048: 64 rows, SGD 0.01
// resnet20                He et al. 2015, section 4.2, shortcuts of option A: 64 images of 32x32, SGD 0.01, momentum
//                         0.9, decay 1e-4
// gpt                     models::Gpt2, 4 layers of width 256 with 4 heads: 8 texts of 128 of 65 characters, AdamW
//                         0.001, decay 0.1
// gpt2                    models::Gpt2, 124M, as train_gpt2.c of llm.c trains it: 4 texts of 64 of 50,257 tokens, AdamW
//                         0.0001, no decay
// gpt2-124m               the same with 4 texts of 1,024 of 50,304 tokens, for GPUs
// Without dropout. `rank` determines the labels. Throws InvalidArgument that lists the names if `name` is unknown.
TrainStepModel make_model(const std::string& name, int rank);
// `optimizer`: "sgd", "momentum" or "adam" instead of the model's own.
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, std::vector<NamedTensor> parameters,
                                                 optim::LossScaler* scaler, const std::string& optimizer = "");

}  // namespace lockstep::bench
