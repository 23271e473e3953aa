// A program of Slim's model_deploy and learning.train, in one process with a clone on each device,
//
//   build/examples/slim --num_clones 2
//
// or with parameter servers, a process each, and several workers with one or more clones each:
//
//   build/launcher/lockrun --ps 1 --workers 2 build/examples/slim --num_ps_tasks 1 --num_replicas 2
//
// It learns which points of a square lie in a circle, and prints
//
//   slim: step 300, total loss 0.05
//
// Checkpoints and event files are in --logdir, from which a second call continues: it has nothing to do.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <memory>
#include <string>
#include <vector>

#include "examples/lib/dashed_flags.h"
#include "examples/lib/parse_flags.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

constexpr std::int64_t kPoints = 2048;

// Points in the square from -1 to 1; the label is 1 for points in the circle.
ls::data::TensorDataset make_circle() {
  std::vector<float> points;
  std::vector<std::int64_t> labels;
  ls::Philox random(/*seed=*/1, /*stream=*/0);
  for (std::int64_t i = 0; i < kPoints; ++i) {
    const float x = random.uniform(-1, 1), y = random.uniform(-1, 1);
    points.insert(points.end(), {x, y});
    labels.push_back(x * x + y * y < 0.6F ? 1 : 0);
  }
  return ls::data::TensorDataset({ls::Tensor::from<float>(points, {kPoints, 2}, ls::cpu_device()),
                                  ls::Tensor::from<std::int64_t>(labels, {kPoints}, ls::cpu_device())});
}

struct Net : nn::Module {
  nn::Linear hidden{2, 64, {.activation = ls::Activation::kReLU}}, out{64, 2};
  Net() { add("hidden", hidden), add("out", out); }
  ls::Tensor forward(const ls::Tensor& x) override { return out(hidden(x)); }
};

ls::Tensor weight_decay(nn::Module& clone) {
  const Net& net = dynamic_cast<const Net&>(clone);
  return 1e-4F * (ls::l2_loss(net.hidden.weight) + ls::l2_loss(net.out.weight));
}

struct Flags {
  ls::train::DeploymentConfig config;
  std::string logdir = "runs/slim";
  std::int64_t steps = 300, batch = 64;
};

bool read_flags(int argc, char** argv, Flags& flags) {
  cxxopts::Options options("slim", "Trains clones of a model as Slim's train_image_classifier does.");
  auto add = options.add_options();
  add("num-clones", "clones of a worker, one on each device",
      cxxopts::value(flags.config.num_clones)->default_value("1"));
  add("num-ps-tasks", "parameter servers of the job", cxxopts::value(flags.config.num_ps_tasks)->default_value("0"));
  add("num-replicas", "workers of the job", cxxopts::value(flags.config.num_replicas)->default_value("1"));
  add("logdir", "folder for checkpoints and event files", cxxopts::value(flags.logdir)->default_value(flags.logdir));
  add("max-number-of-steps", "steps of the training", cxxopts::value(flags.steps)->default_value("300"));
  add("batch-size", "points in a step of each worker", cxxopts::value(flags.batch)->default_value("64"));
  add("help", "print this text");
  ls::examples::DashedFlags dashed(argc, argv);
  const auto parsed = ls::examples::parse_naming_flags(options, argc, dashed.argv());
  if (parsed.count("help") != 0) std::printf("%s", options.help().c_str());
  return parsed.count("help") == 0;
}

int train(int argc, char** argv) {
  Flags flags;
  if (!read_flags(argc, argv, flags)) return 0;
  ls::train::DeploymentConfig& config = flags.config;
  const bool has_gpu = ls::physical_devices().size() > 1;
  if (!has_gpu && config.num_clones > 1) ls::Device::configure({.cpu = config.num_clones});
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  if (group->rank() < config.num_replicas) config.replica_id = group->rank();  // lockrun's first ranks are the workers
  ls::manual_seed(1);

  const ls::data::TensorDataset circle = make_circle();
  const ls::Place place{config.replica_id, config.num_replicas, config.replica_id, config.num_replicas};
  ls::data::Reader reader(ls::data::Pipeline(circle).shuffle().repeat().batch(flags.batch * config.num_replicas),
                          {.place = place});
  const ls::train::DeployedModel deployed =
      ls::train::deploy(config,
                        {.model = [] { return std::make_unique<Net>(); },
                         .optimizer =
                             [](std::vector<ls::NamedTensor> variables) {
                               return std::make_unique<ls::optim::SGD>(
                                   std::move(variables), ls::optim::SGDOptions{.lr = 0.2F, .momentum = 0.9F});
                             },
                         .loss = nn::cross_entropy},
                        {.reader = &reader, .regularization = weight_decay});
  const float loss = ls::train::train(deployed.train_op, flags.logdir, deployed.summary_op,
                                      {.number_of_steps = flags.steps, .log_every_n_steps = 100});
  if (group->rank() == 0 && !std::isnan(loss))
    std::printf("slim: step %lld, total loss %.2f\n", static_cast<long long>(flags.steps), loss);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("slim", train, argc, argv); }
