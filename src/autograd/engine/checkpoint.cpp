#include "lockstep/autograd/activation_checkpoint.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/engine/capture_pass.h"
#include "src/autograd/engine/parallel_branches.h"
#include "src/autograd/engine/tape_segment.h"

namespace lockstep {

namespace {

thread_local bool runs_again = false;
thread_local int functions_in_progress = 0;

struct FunctionInProgress {
  FunctionInProgress() { ++functions_in_progress; }
  ~FunctionInProgress() { --functions_in_progress; }
};

using CheckpointFunction = std::function<Tensor(const std::vector<Tensor>&)>;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

std::size_t index_in(const std::vector<Tensor>& list, const Tensor& wanted) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const Tensor& tensor) { return tensor.is_same(wanted); });
  return found == list.end() ? kNone : static_cast<std::size_t>(found - list.begin());
}

std::vector<std::uint64_t> versions_of(const std::vector<Tensor>& tensors) {
  std::vector<std::uint64_t> versions;
  for (const Tensor& tensor : tensors) versions.push_back(tensor.version());
  return versions;
}

// A view for the function to read: a leaf, of any float type, if a gradient is wanted.
Tensor argument_for(const Tensor& input, bool wants_grad) {
  const Tensor argument = detach(input);
  if (wants_grad) ensure_variable(argument).wants_grad = true;
  return argument;
}

// The state of this thread, besides tensors, on which the numbers of a run depend.
struct RunContext {
  RandomState random = random_state();
  SampleNumbers samples = sample_numbers();
  DType cast = AutoCast::active();
};

// The arguments of a run: argument k stands for tensor tensor_of[k] of `distinct` (kNone: undefined).
struct Arguments {
  std::vector<Tensor> distinct;
  std::vector<std::size_t> tensor_of;
  std::vector<Tensor> spread(const std::vector<Tensor>& views) const {
    std::vector<Tensor> arguments;
    for (const std::size_t index : tensor_of) arguments.push_back(index == kNone ? Tensor() : views[index]);
    return arguments;
  }
};

Arguments arguments_of(const std::vector<Tensor>& inputs) {
  Arguments arguments;
  for (const Tensor& input : inputs) {
    std::size_t index = input.defined() ? index_in(arguments.distinct, input) : kNone;
    if (input.defined() && index == kNone) {
      index = arguments.distinct.size();
      arguments.distinct.push_back(input);
    }
    arguments.tensor_of.push_back(index);
  }
  return arguments;
}

// Inputs: the tensors outside of the function to which its gradient flows, each once. Saved: the distinct arguments,
// followed by the inputs.
class CheckpointNode : public Node {
 public:
  CheckpointNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, CheckpointFunction function,
                 Arguments arguments, const RunContext& context)
      : Node(std::move(inputs), std::move(saved)),
        function_(std::move(function)),
        tensor_of_argument_(std::move(arguments.tensor_of)),
        context_(context) {
    for (const Tensor& argument : arguments.distinct) input_of_argument_.push_back(index_in(this->inputs(), argument));
  }
  const char* name() const override { return "checkpoint"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    TapeSegment segment;
    BackwardPass* const outer = BackwardPass::innermost();
    CapturePass pass(&segment, [outer](std::size_t index) { outer->finish_input(index); });
    std::vector<Tensor> views;
    for (std::size_t i = 0; i < input_of_argument_.size(); ++i) {
      const std::size_t index = input_of_argument_[i];
      const bool wanted = index != kNone && targets[index];
      views.push_back(argument_for(saved(i), wanted));
      if (wanted) pass.capture(index, views.back(), targets[index]);
    }
    for (std::size_t i = 0; i < inputs().size(); ++i) {
      saved(views.size() + i);  // throws if it was changed
      if (requires_grad(input(i))) pass.capture(i, input(i), targets[i]);
    }
    pass.collect({{compute_again(segment, views, result_grad), result_grad}});
    pass.prune();
    for (std::size_t i = 0; i < inputs().size(); ++i)
      if (targets[i] && !pass.reached(i))
        throw InvalidArgument(
            "checkpoint: the gradient of {} depended on the function in its first run, but not when backward ran it "
            "again: the function "
            "must do the same both times",
            describe(input(i)));
    pass.run(false);
  }

 private:
  void release_members() override { function_ = nullptr; }

  Tensor compute_again(TapeSegment& segment, const std::vector<Tensor>& views, const Tensor& result_grad) const {
    struct Kept {
      const RandomState random = random_state();
      const SampleNumbers samples = sample_numbers();
      const bool ran_again = std::exchange(runs_again, true);
      ~Kept() {
        set_random_state(random);
        set_sample_numbers(samples);
        runs_again = ran_again;
      }
    } const kept;
    set_random_state(context_.random);
    set_sample_numbers(context_.samples);
    const AutoCast cast(context_.cast);
    const EnableGrad recording;
    const Arguments arguments{{}, tensor_of_argument_};
    const FunctionInProgress in_progress;
    const Tensor result = segment.record([&] { return function_(arguments.spread(views)); });
    if (!result.defined() || result.shape() != result_grad.shape() || result.dtype() != result_grad.dtype())
      throw InvalidArgument(
          "checkpoint: the function returned {} of shape {} in its first run, but {} when backward ran it again: it "
          "must do the same both "
          "times",
          name_of(result_grad.dtype()), result_grad.shape().text(),
          result.defined() ? fmt::format("{} of shape {}", name_of(result.dtype()), result.shape().text())
                           : "an undefined tensor");
    return result;
  }

  CheckpointFunction function_;
  std::vector<std::size_t> tensor_of_argument_;  // as in Arguments
  std::vector<std::size_t> input_of_argument_;   // of each distinct argument; kNone: no gradient flows there
  RunContext context_;
};

// The inputs of the node: if `ends` has a view of an argument, the argument itself.
std::vector<Tensor> inputs_for(const std::vector<Tensor>& ends, const std::vector<Tensor>& views,
                               const std::vector<Tensor>& arguments) {
  std::vector<Tensor> inputs;
  for (const Tensor& end : ends) {
    const std::size_t view = index_in(views, end);
    const Tensor& outside = view == kNone ? end : arguments[view];
    if (index_in(inputs, outside) == kNone) inputs.push_back(outside);
  }
  return inputs;
}

}  // namespace

bool recomputing() { return runs_again; }
bool in_checkpoint() { return functions_in_progress > 0; }

CheckpointContext checkpoint_context() { return {runs_again, functions_in_progress}; }
void set_checkpoint_context(const CheckpointContext& context) {
  runs_again = context.recomputing;
  functions_in_progress = context.functions_in_progress;
}

Tensor checkpoint(CheckpointFunction function, const std::vector<Tensor>& inputs) {
  if (!function) throw InvalidArgument("checkpoint: the function is empty");
  if (NoGrad::active()) return function(inputs);
  const RunContext context;
  const Arguments arguments = arguments_of(inputs);
  std::vector<Tensor> views, read;
  TapeSegment segment;
  Tensor result;
  {
    for (const Tensor& argument : arguments.distinct) views.push_back(argument_for(argument, requires_grad(argument)));
    const std::vector<std::uint64_t> versions = versions_of(arguments.distinct);
    const FunctionInProgress in_progress;
    const Tensor recorded = segment.record([&] { return function(arguments.spread(views)); });
    if (!recorded.defined()) throw InvalidArgument("checkpoint: the function returned an undefined tensor");
    read = inputs_for(segment.ends_below(recorded), views, arguments.distinct);
    if (!read.empty() && versions != versions_of(arguments.distinct))
      throw InvalidArgument(
          "checkpoint: the function changed one of its inputs in place: backward would run it again on the changed "
          "values. "
          "Let it change a "
          "clone()");
    result = detach(recorded);
  }
  if (read.empty()) return result;
  std::vector<Tensor> saved = arguments.distinct;
  saved.insert(saved.end(), read.begin(), read.end());
  for (Tensor& tensor : saved)
    if (node_of(tensor)) tensor = detach(tensor);  // inputs() holds the history
  attach(result, std::make_shared<CheckpointNode>(read, std::move(saved), std::move(function), arguments, context));
  return result;
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> function, const Tensor& input) {
  if (!function) throw InvalidArgument("checkpoint: the function is empty");
  return checkpoint(
      [function = std::move(function)](const std::vector<Tensor>& inputs) { return function(inputs.front()); },
      std::vector{input});
}

}  // namespace lockstep
