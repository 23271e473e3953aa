// parallel_apply(). The tape holds, for all branches together,
//
//     what the branches read  ->  ParallelNode  ->  marker  ->  a BranchOutputNode for each result
//
// and the nodes of each branch apart from it, in a segment. In backward the BranchOutputNodes come first and leave the
// gradients of their results with the ParallelNode, which then runs a pass over the segment of each branch, on the
// threads of the devices. The marker is an empty tensor that orders them.
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/engine/capture_pass.h"
#include "src/autograd/engine/completed_inputs.h"
#include "src/autograd/engine/device_threads.h"
#include "src/autograd/engine/parallel_branches.h"
#include "src/autograd/engine/tape_segment.h"

namespace lockstep {

namespace {

using Callbacks = std::vector<std::function<void()>>;

// Branches by the thread that computes them, in order.
using Schedule = std::vector<std::vector<std::size_t>>;

Schedule schedule_of(const std::vector<WideBranch>& branches, bool on_threads) {
  Schedule schedule;
  std::vector<const Device*> devices;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    const Device* const device = on_threads ? &branches[b].device : nullptr;
    const auto found = std::find(devices.begin(), devices.end(), device);
    const auto thread = static_cast<std::size_t>(found - devices.begin());
    if (found == devices.end()) {
      devices.push_back(device);
      schedule.emplace_back();
    }
    schedule[thread].push_back(b);
  }
  return schedule;
}

// This thread's threads for so many devices. A forked child has none of its parent's.
DeviceThreads& threads_for(int devices) {
  struct Made {
    pid_t owner = 0;
    std::unique_ptr<DeviceThreads> threads;
  };
  thread_local std::map<int, Made> all;
  Made& made = all[devices];
  if (made.owner != ::getpid()) {
    static_cast<void>(made.threads.release());
    made = {::getpid(), std::make_unique<DeviceThreads>(devices)};
  }
  return *made.threads;
}

// Calls work(branch) for each branch, on the thread of its device, and `meanwhile` on this one. Rethrows the exception
// of the lowest branch: a thread does not continue after one.
void run_schedule(const Schedule& schedule, const std::function<void(std::size_t branch)>& work,
                  const std::function<void()>& meanwhile = {}) {
  std::map<std::size_t, std::exception_ptr> failures;
  std::mutex mutex;
  const auto run_thread = [&](int thread) {
    for (const std::size_t branch : schedule[static_cast<std::size_t>(thread)]) {
      try {
        work(branch);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failures.emplace(branch, std::current_exception());
        return;
      }
    }
  };
  const RandomState random = random_state();
  const SampleNumbers samples = sample_numbers();
  std::exception_ptr own_failure;
  try {
    if (schedule.size() == 1)
      run_thread(0);
    else
      threads_for(static_cast<int>(schedule.size())).run(run_thread, meanwhile);
    if (schedule.size() == 1 && meanwhile && failures.empty()) meanwhile();
  } catch (...) {
    own_failure = std::current_exception();
  }
  set_random_state(random);
  set_sample_numbers(samples);
  if (!failures.empty()) std::rethrow_exception(failures.begin()->second);
  if (own_failure) std::rethrow_exception(own_failure);
}

// A seed of a branch's own: the draws of one branch do not depend on how often another one draws.
RandomState random_of_branch(const RandomState& caller, std::size_t branch) {
  constexpr std::uint32_t kBranches = 0x6272616e;  // no stream of random_stream() has this counter
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  const auto words = philox4x32({low(caller.next_dropout), high(caller.next_dropout), low(branch), kBranches},
                                {low(caller.seed), high(caller.seed)});
  return {.seed = words[0] | static_cast<std::uint64_t>(words[1]) << 32};
}

// The tape of a branch.
struct RecordedBranch {
  TapeSegment segment;
  Tensors results;                                 // with their history in the segment
  Tensors gradients;                               // of the results, in this pass; undefined: none
  std::vector<Tensor> ends;                        // what it reads from outside
  std::vector<std::size_t> read;                   // their indices among the inputs of the ParallelNode
  std::vector<std::vector<std::size_t>> read_for;  // the same for each result
};

struct RecordedBranches {
  Schedule schedule;
  std::deque<RecordedBranch> branches;
};

// The part of a pass that a branch's thread computes. What is to be called at the end of the pass waits for its end.
class BranchPass final : public CapturePass {
 public:
  using CapturePass::CapturePass;
  Callbacks at_end;

 protected:
  void note_end_callbacks(const Callbacks& callbacks) override {
    at_end.insert(at_end.end(), callbacks.begin(), callbacks.end());
  }
};

// While it lives, this thread has the state of the thread for which it computes.
class ContextOf {
 public:
  explicit ContextOf(const CheckpointContext& caller) { set_checkpoint_context(caller); }
  ~ContextOf() { set_checkpoint_context(before_); }
  ContextOf(const ContextOf&) = delete;
  ContextOf& operator=(const ContextOf&) = delete;

 private:
  const CheckpointContext before_ = checkpoint_context();
};

class ParallelNode : public Node {
 public:
  ParallelNode(std::vector<Tensor> inputs, std::shared_ptr<RecordedBranches> recorded)
      : Node(std::move(inputs)), recorded_(std::move(recorded)) {}
  const char* name() const override { return "parallel_apply"; }

  void backward(const Tensor&, std::span<const GradTarget> targets) override {
    BackwardPass& outer = *BackwardPass::innermost();
    const std::size_t branches = recorded_->branches.size();
    std::vector<std::vector<BackwardPass::Root>> roots(branches);
    std::vector<std::set<std::size_t>> reached(branches);  // inputs, by branch
    std::vector<int> readers(inputs().size());             // branches that reach the input
    for (std::size_t b = 0; b < branches; ++b) {
      roots[b] = roots_of(recorded_->branches[b], reached[b]);
      for (const std::size_t input : reached[b]) ++readers[input];
    }
    for (std::size_t i = 0; i < readers.size(); ++i)
      if (readers[i] == 0) outer.skip_input(i);

    // The gradients of inputs that several branches read, by branch and input.
    std::vector<Tensors> parts(branches, Tensors(inputs().size()));
    const auto target_for = [&](std::size_t b, std::size_t input, const Tensor& end) {
      return readers[input] > 1 && targets[input] ? GradTarget(&parts[b][input], end, true, true) : targets[input];
    };
    std::vector<int> left = readers;
    CompletedInputs completed(branches);
    std::vector<Callbacks> at_end(branches);
    const CheckpointContext context = checkpoint_context();
    const bool retains = outer.retains_graph();
    const auto run_branch = [&](std::size_t b) {
      const ContextOf caller(context);
      try {
        if (!roots[b].empty()) {
          const RecordedBranch& branch = recorded_->branches[b];
          BranchPass pass(&branch.segment, [&](std::size_t input) { completed.add(b, input); });
          for (std::size_t e = 0; e < branch.ends.size(); ++e)
            pass.capture(branch.read[e], branch.ends[e], target_for(b, branch.read[e], branch.ends[e]));
          pass.collect(std::move(roots[b]));
          pass.prune();
          pass.run(retains);
          at_end[b] = std::move(pass.at_end);
        }
      } catch (...) {
        completed.stop();
        throw;
      }
      completed.end(b);
    };
    run_schedule(recorded_->schedule, run_branch, [&] {
      completed.take_all([&](std::size_t input) {
        if (--left[input] > 0) return;
        add_parts(parts, input, targets[input]);
        outer.finish_input(input);
      });
    });
    for (const Callbacks& callbacks : at_end) BackwardPass::outermost()->call_at_end(callbacks);
  }

 private:
  void release_members() override { recorded_.reset(); }

  // The results that have a gradient in this pass. Adds the inputs on which they depend to `reached`.
  static std::vector<BackwardPass::Root> roots_of(RecordedBranch& branch, std::set<std::size_t>& reached) {
    std::vector<BackwardPass::Root> roots;
    for (std::size_t r = 0; r < branch.results.size(); ++r) {
      Tensor gradient = std::exchange(branch.gradients[r], {});
      if (!gradient.defined()) continue;
      roots.push_back({branch.results[r], std::move(gradient)});
      reached.insert(branch.read_for[r].begin(), branch.read_for[r].end());
    }
    return roots;
  }

  static void add_parts(const std::vector<Tensors>& parts, std::size_t input, const GradTarget& target) {
    bool is_first = true;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (!(*part)[input].defined()) continue;
      (is_first ? target : target.again()).give((*part)[input]);
      is_first = false;
    }
  }

  std::shared_ptr<RecordedBranches> recorded_;
};

class BranchOutputNode : public Node {
 public:
  BranchOutputNode(const Tensor& marker, std::shared_ptr<RecordedBranches> recorded, std::size_t branch,
                   std::size_t result)
      : Node({marker}), recorded_(std::move(recorded)), branch_(branch), result_(result) {}
  const char* name() const override { return "parallel_apply"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (!targets[0]) return;
    recorded_->branches[branch_].gradients[result_] =
        BackwardPass::innermost()->retains_graph() ? result_grad.clone() : result_grad;
    targets[0].give(Tensor::zeros({1}, DType::kFloat32, cpu_device()));
  }

 private:
  void release_members() override { recorded_.reset(); }

  std::shared_ptr<RecordedBranches> recorded_;
  const std::size_t branch_, result_;
};

// The inputs of the node: what the branches read, each once.
std::vector<Tensor> number_inputs(RecordedBranches& recorded) {
  std::vector<Tensor> inputs;
  std::unordered_map<const VariableState*, std::size_t> known;
  for (RecordedBranch& branch : recorded.branches) {
    std::unordered_set<const VariableState*> of_branch;
    for (const Tensor& result : branch.results) {
      branch.read_for.emplace_back();
      for (const Tensor& end : branch.segment.ends_below(result)) {
        const auto [found, is_new] = known.emplace(variable_of(end), inputs.size());
        if (is_new) inputs.push_back(end);
        branch.read_for.back().push_back(found->second);
        if (!of_branch.insert(variable_of(end)).second) continue;
        branch.ends.push_back(end);
        branch.read.push_back(found->second);
      }
    }
  }
  return inputs;
}

std::vector<Tensors> attach_branches(const std::shared_ptr<RecordedBranches>& recorded) {
  const std::vector<Tensor> inputs = number_inputs(*recorded);
  Tensor marker;
  if (!inputs.empty()) {
    marker = Tensor::zeros({1}, DType::kFloat32, cpu_device());
    attach(marker, std::make_shared<ParallelNode>(inputs, recorded));
  }
  std::vector<Tensors> all;
  for (std::size_t b = 0; b < recorded->branches.size(); ++b) {
    RecordedBranch& branch = recorded->branches[b];
    branch.gradients.resize(branch.results.size());
    all.emplace_back();
    for (std::size_t r = 0; r < branch.results.size(); ++r) {
      all[b].push_back(detach(branch.results[r]));
      if (requires_grad(branch.results[r]))
        attach(all[b][r], std::make_shared<BranchOutputNode>(marker, recorded, b, r));
    }
  }
  return all;
}

}  // namespace

std::vector<Tensors> apply_branches(const std::vector<WideBranch>& branches, bool on_threads) {
  if (branches.empty()) throw InvalidArgument("parallel_apply: got no branch");
  const auto recorded = std::make_shared<RecordedBranches>();
  recorded->schedule = schedule_of(branches, on_threads);
  for (std::size_t b = 0; b < branches.size(); ++b) recorded->branches.emplace_back();
  RandomState random = random_state();
  const SampleNumbers samples = sample_numbers();
  const CheckpointContext context = checkpoint_context();
  const bool records = !NoGrad::active();
  std::vector<char> has_drawn(branches.size());
  run_schedule(recorded->schedule, [&](std::size_t b) {
    const RandomState own = random_of_branch(random, b);
    set_random_state(own);
    set_sample_numbers(samples);
    const ContextOf caller(context);
    RecordedBranch& branch = recorded->branches[b];
    const auto compute = [&] {
      branch.segment.record([&] {
        branch.results = branches[b].function();
        return Tensor();
      });
    };
    if (records) {
      compute();
    } else {
      const NoGrad not_recorded;
      compute();
    }
    for (const Tensor& result : branch.results)
      if (!result.defined())
        throw InvalidArgument("parallel_apply: the function of branch {} returned an undefined tensor", b);
    has_drawn[b] = random_state() == own ? 0 : 1;
  });
  if (std::find(has_drawn.begin(), has_drawn.end(), 1) != has_drawn.end()) {
    ++random.next_dropout;
    set_random_state(random);
  }
  if (records) return attach_branches(recorded);
  std::vector<Tensors> results;
  for (RecordedBranch& branch : recorded->branches) results.push_back(branch.results);
  return results;
}

Tensors parallel_apply(const std::vector<Branch>& branches) {
  std::vector<WideBranch> wide;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    if (!branches[b].function) throw InvalidArgument("parallel_apply: the function of branch {} is empty", b);
    wide.push_back({[&branches, b]() -> Tensors { return {branches[b].function()}; }, branches[b].device});
  }
  // A loss that a function adds would have its history in the branch: nn::add_loss() refuses it, as in a checkpoint.
  CheckpointContext adds_none = checkpoint_context();
  ++adds_none.functions_in_progress;
  const ContextOf refusing(adds_none);
  Tensors results;
  for (const Tensors& one : apply_branches(wide, true)) results.push_back(one.front());
  return results;
}

}  // namespace lockstep
