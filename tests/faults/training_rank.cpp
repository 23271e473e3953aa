// One rank of a small DDP training with checkpoints, for tests of faults, and on request a failure of one rank.
//
//   training_rank steps=50 folder=DIR save_every=10 fail_rank=1 fail_at=5 how=kill stamp=FILE
//
// how: the values of go_wrong(); hang_inside (in a collective that it has entered), other_call, other_model, disk
// (saving will fail; with on_error=stop this ends the training). With fail_attempts=N only the first N attempts of
// lockrun --max-restarts fail, with fail_later=N attempt A fails after A + N steps. Before the failure it writes the
// steady clock's nanoseconds to `stamp`. `pause_ms` slows the steps down. At the end each rank prints its steps, its
// transport, and the hash of its weights; with resume=1 training continues from the folder's checkpoint.
#include <fmt/format.h>
#include <pthread.h>

#include <array>
#include <fstream>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/should_stop.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/launch/launch.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/faults/rank_arguments.h"
#include "tests/faults/training_net.h"

namespace {

using lockstep::Tensor;
using lockstep::testing::RankArguments;

using lockstep::testing::TrainingNet;

constexpr std::int64_t kInputs = TrainingNet::kInputs, kBatch = 8;

void stamp(const RankArguments& arguments) {
  if (const std::string path = arguments.text("stamp"); !path.empty())
    std::ofstream(path) << std::chrono::steady_clock::now().time_since_epoch().count() << std::flush;
}

// The main thread stops forever, wherever it is a moment later.
void hang_soon() {
  std::signal(SIGUSR2, [](int) {
    while (true) ::pause();
  });
  std::thread([main = ::pthread_self()] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::pthread_kill(main, SIGUSR2);
  }).detach();
}

class Training {
 public:
  explicit Training(const RankArguments& arguments)
      : arguments_(arguments),
        how_(arguments.text("how")),
        fails_(arguments.number("fail_rank", -1) == group_->rank() &&
               lockstep::launch::attempt() < arguments.number("fail_attempts", 1'000'000)),
        fail_at_(arguments.number("fail_later", -1) < 0
                     ? arguments.number("fail_at", -1)
                     : arguments.number("fail_later", -1) + lockstep::launch::attempt()) {
    // Seeds rank 0; the replicas start from rank 0's weights anyway.
    lockstep::manual_seed(11);
    net_ = std::make_unique<TrainingNet>(fails_ && how_ == "other_model" ? 33 : 32);
    if (how_ == "other_model" && fails_) stamp(arguments_);
    ddp_ = std::make_unique<lockstep::DistributedDataParallel>(*net_, group_);
    sgd_ = std::make_unique<lockstep::optim::SGD>(ddp_->parameters(),
                                                  lockstep::optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F});
  }

  int run() {
    const int steps = arguments_.number("steps", 10), save_every = arguments_.number("save_every", 0);
    const std::string folder = arguments_.text("folder");
    if (arguments_.number("resume", 0) != 0)
      if (const auto saved = lockstep::train::load_checkpoint(folder, parts())) step_ = saved->step;
    const std::int64_t first = step_;
    while (step_ < steps) {
      if (step_ == fail_at_ && misbehave()) return 0;
      if (step_ == arguments_.number("gate_at", -1)) await_gate();
      train_one();
      if (save_every > 0 && step_ % save_every == 0) save(folder);
      if (arguments_.number("preempt", 0) != 0 && lockstep::should_stop()) {
        if (save_every == 0 || step_ % save_every != 0) save(folder);
        return lockstep::kPreemptedExitCode;
      }
      if (step_ == first + 1) say("is running");  // after should_stop(): from then on, signals are requests
      std::this_thread::sleep_for(std::chrono::milliseconds(arguments_.number("pause_ms", 0)));
    }
    const auto sent = group_->backend().counters();
    say(fmt::format("did {} steps over {}, {} + {} bytes, weights {}", steps, group_->backend().transport(),
                    sent.shared_memory_bytes, sent.tcp_bytes, lockstep::hash_of(net_->named_parameters())));
    return 0;
  }

 private:
  lockstep::train::CheckpointParts parts() {
    return {.model = *net_, .optimizer = *sgd_, .ddp = *ddp_, .step = step_, .group = group_};
  }

  void save(const std::string& folder) {
    if (how_ == "disk" && group_->rank() == 0) stamp(arguments_);
    using lockstep::train::OnSaveError;
    const bool stops = arguments_.text("on_error") == "stop";
    lockstep::train::save_checkpoint(folder, parts(),
                                     {.on_error = stops ? OnSaveError::kStop : OnSaveError::kContinue});
  }

  void say(const std::string& what) const {
    fmt::print("rank {} of {} {}\n", group_->rank(), group_->world_size(), what);
    std::fflush(stdout);
  }

  void train_one() {
    lockstep::Philox random(/*seed=*/5, static_cast<std::uint64_t>(step_ * group_->world_size() + group_->rank()));
    std::vector<float> inputs(kBatch * kInputs);
    std::vector<std::int64_t> classes(kBatch);
    for (float& input : inputs) input = random.uniform(-1.F, 1.F);
    for (std::size_t i = 0; i < classes.size(); ++i)
      classes[i] = inputs[i * kInputs] > 0 ? 1 : inputs[i * kInputs + 1] > 0 ? 2 : 3;
    sgd_->zero_grad();
    const Tensor loss =
        lockstep::nn::cross_entropy((*ddp_)(Tensor::from(std::span<const float>(inputs), {kBatch, kInputs})),
                                    Tensor::from(std::span<const std::int64_t>(classes), {kBatch}));
    loss.backward();
    sgd_->step();
    average_metrics(loss.item());
    ++step_;
  }

  // Runs in this thread, and long enough for several pieces. A rank that hangs inside does so before the others have
  // arrived.
  void average_metrics(float loss) {
    if (how_ == "hang_inside" && step_ == fail_at_) {
      if (fails_)
        stamp(arguments_), hang_soon();
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    metrics_.assign(metrics_.size(), loss);
    group_->all_reduce(std::span<float>(metrics_), lockstep::ReduceOp::kAvg, {.purpose = {"metrics"}});
  }

  // At step gate_at=N of the first attempt it waits for the file gate=FILE.
  void await_gate() const {
    if (lockstep::launch::attempt() > 0) return;
    say("waits");
    const std::string gate = arguments_.text("gate");
    for (int i = 0; i < 12'000 && ::access(gate.c_str(), F_OK) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  // Returns true if the rank should end successfully now.
  bool misbehave() {
    if (!fails_ || how_ == "hang_inside") return false;
    stamp(arguments_);
    if (how_ == "other_call") {
      std::array<float, 4> data{};
      group_->broadcast(std::span<float>(data), 0, {.purpose = {"settings"}});
    }
    return lockstep::testing::go_wrong(how_);
  }

  const RankArguments& arguments_;
  std::shared_ptr<lockstep::ProcessGroup> group_ = lockstep::init_process_group();
  std::string how_;
  bool fails_;
  int fail_at_;  // the step
  std::unique_ptr<TrainingNet> net_;
  std::unique_ptr<lockstep::DistributedDataParallel> ddp_;
  std::unique_ptr<lockstep::optim::SGD> sgd_;
  std::vector<float> metrics_ = std::vector<float>(static_cast<std::size_t>(arguments_.number("metrics", 100'000)));
  std::int64_t step_ = 0;
};

int run(int argc, char** argv) {
  const RankArguments arguments(argc, argv);
  return Training(arguments).run();
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("training_rank", run, argc, argv); }
