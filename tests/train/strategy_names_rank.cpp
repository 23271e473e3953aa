// strategy_names_rank WHERE NAME0 NAME1 ...: rank r asks for strategy NAMEr, or calls deploy() (NAMEr is `deploy`), in
// the job's default group (WHERE is `together`), in a group of its own (`apart`), or on rank 0 alone with the job's as
// .group (`half`), prints its name or what is thrown, and takes part in a call of the whole job.
#include <cstdio>
#include <string>

#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

std::string outcome_of(const std::string& name, const ls::train::StrategyOptions& options) {
  try {
    const ls::train::Training training = {
        .model = [] { return std::make_unique<ls::nn::Linear>(2, 2); },
        .optimizer =
            [](std::vector<ls::NamedTensor> parameters) {
              return std::make_unique<ls::optim::SGD>(parameters, ls::optim::SGDOptions{});
            },
        .loss = [](const ls::Tensor& outputs, const ls::Tensor& targets) { return ls::mse_loss(outputs, targets); }};
    if (name == "deploy") {
      ls::train::DeployOptions deployment{.next_batch = [] { return std::nullopt; }, .group = options.group};
      ls::train::deploy({}, training, deployment);
      return name;
    }
    return name.empty() ? ls::train::make_strategy(training)->name()
                        : ls::train::make_strategy(name, training, options)->name();
  } catch (const ls::Error& error) {
    return error.what();
  }
}

int run(int argc, char** argv) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const std::string where = argc > 1 ? argv[1] : "", name = argc > 2 + group->rank() ? argv[2 + group->rank()] : "";
  ls::train::StrategyOptions options;
  if (where == "apart") options.group = group->split(group->rank());
  if (where == "half" && group->rank() == 0) options.group = group;
  std::printf("rank %d: %s\n", group->rank(), outcome_of(name, options).c_str());
  group->barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("strategy_names_rank", run, argc, argv); }
