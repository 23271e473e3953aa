// The program of docs/coming-from-tensorflow.md: a small network learns which points of a square lie in a circle,
// without a loop. Run it from the build's folder:
//
//   launcher/lockrun -n 2 examples/coming_from_tensorflow
//
//   [0] accuracy on 256 points: 0.98
//
// A second run with the same folder resumes from run/circle. The plot of the training is then in run/circle.svg.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

// 2,048 points of a square, the same on all ranks, with label 1 in the circle and 0 outside.
std::vector<ls::Tensor> make_circle() {
  const ls::Tensor points = ls::Tensor::empty({2048, 2}), labels = ls::Tensor::empty({2048}, ls::DType::kInt64);
  ls::manual_seed(1);
  nn::init::uniform(points, -1, 1);
  for (std::size_t i = 0; i < 2048; ++i) {
    const float x = points.span<float>()[2 * i], y = points.span<float>()[2 * i + 1];
    labels.span<std::int64_t>()[i] = x * x + y * y < 0.6F ? 1 : 0;
  }
  return {points, labels};
}

std::unique_ptr<nn::Module> make_net() {
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>(2, 64, nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
  net->append<nn::Dropout>(0.1F);
  net->append<nn::Linear>(64, 2);
  return net;
}

std::unique_ptr<ls::optim::Optimizer> make_optimizer(std::vector<ls::NamedTensor> parameters) {
  return std::make_unique<ls::optim::Nadam>(std::move(parameters), ls::optim::NadamOptions::keras(0.02F));
}

ls::Tensor loss_of(const ls::Tensor& logits, const ls::Tensor& labels) { return nn::cross_entropy(logits, labels); }

int train(int, char**) {
  const ls::data::TensorDataset circle(make_circle());
  const auto parts = ls::data::random_split(circle, {1792, 256}, /*seed=*/1);
  const auto training = ls::data::Pipeline(parts[0]).cache().shuffle(2048, /*seed=*/1).batch(64).prefetch(2);
  const auto validation = ls::data::Pipeline(parts[1]).batch(64);

  ls::train::Trainer trainer(make_net);
  trainer.compile({.optimizer = make_optimizer,
                   .loss = loss_of,
                   .metrics = {{"accuracy", ls::train::Accuracy()}},
                   .strategy = "ddp"});  // "mirrored": one process for all devices, without lockrun
  trainer.load("run/circle");
  trainer.fit(training, {.epochs = 10,
                         .initial_epoch = trainer.epoch(),
                         .validation = validation,
                         .callbacks = {std::make_shared<ls::train::ModelCheckpoint>("run/circle"),
                                       std::make_shared<ls::train::EarlyStopping>(
                                           ls::train::EarlyStoppingOptions{.monitor = "val_loss", .patience = 5})}});
  const double accuracy = ls::train::value_of(trainer.evaluate(validation), "accuracy", "circle");
  if (trainer.is_first_rank()) trainer.history().plot("run/circle.svg");
  if (trainer.is_first_rank()) std::printf("accuracy on 256 points: %.2f\n", accuracy);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("coming_from_tensorflow", train, argc, argv); }
