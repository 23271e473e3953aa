#include "lockstep/autograd/node.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "src/autograd/engine/backward_pass.h"
#include "src/autograd/engine/tape_segment.h"
#include "src/autograd/engine/trace.h"
#include "src/autograd/engine/variable_state.h"

namespace lockstep {

namespace {

thread_local std::uint64_t last_sequence = 0;

// One more than the number of this thread's last node and of every node that computed an input (Lamport's clock): the
// recording order within a thread, and a topological order even if several threads recorded the tape.
std::uint64_t next_sequence(const std::vector<Tensor>& inputs) {
  for (const Tensor& input : inputs)
    if (const VariableState* state = variable_of(input); state != nullptr && state->node)
      last_sequence = std::max(last_sequence, state->node->sequence());
  return ++last_sequence;
}

// Drops the tensors of a destroyed node. A tape is a long chain of nodes that own each other. Nodes that are destroyed
// during the destruction of another one pass their tensors to it, so that the recursion stays flat whatever the depth.
void drop(std::vector<Tensor> tensors) {
  thread_local std::vector<std::vector<Tensor>>* dying = nullptr;
  if (dying != nullptr) {
    dying->push_back(std::move(tensors));
    return;
  }
  std::vector<std::vector<Tensor>> queue;
  dying = &queue;
  queue.push_back(std::move(tensors));
  while (!queue.empty()) {
    std::vector<Tensor> next = std::move(queue.back());
    queue.pop_back();
    next.clear();
  }
  dying = nullptr;
}

}  // namespace

GradTarget GradTarget::again() const {
  GradTarget adding = *this;
  adding.first_write_ = false;
  return adding;
}

OutputView GradTarget::view() const {
  if (memory_ == nullptr) return {};
  if (is_written_ != nullptr) *is_written_ = true;
  if (!memory_->defined()) *memory_ = Tensor::empty(shape_, type_, *device_);
  return {memory_->buffer().data(), type_, shape_, accumulate()};
}

void GradTarget::give(const Tensor& gradient) const {
  if (memory_ == nullptr) return;
  if (is_written_ != nullptr) *is_written_ = true;
  if (!gradient.defined() || gradient.count() != shape_.count() || &gradient.device() != device_)
    throw InvalidArgument(
        "backward: {} returned {} as the gradient of an input of shape {} on {}", BackwardPass::name_of_running(),
        gradient.defined()
            ? fmt::format("a tensor of shape {} on {}", gradient.shape().text(), gradient.device().name())
            : "an undefined tensor",
        shape_.text(), device_->name());
  if (takes() && gradient.dtype() == type_) {
    *memory_ = gradient.reshaped(shape_);
    return;
  }
  if (gradient.dtype() == type_)
    device_->kernels().scale(gradient, 1, view(), device_->default_stream());
  else
    device_->kernels().convert(gradient, view(), device_->default_stream());
}

Node::Node(std::vector<Tensor> inputs, std::vector<Tensor> saved)
    : inputs_(std::move(inputs)), saved_(std::move(saved)), sequence_(next_sequence(inputs_)) {
  saved_versions_.reserve(saved_.size());
  for (const Tensor& tensor : saved_) saved_versions_.push_back(tensor.defined() ? tensor.version() : 0);
}

Node::~Node() {
  drop(std::move(saved_));
  drop(std::move(inputs_));
}

const Tensor& Node::saved(std::size_t index) const {
  const Tensor& tensor = saved_[index];
  if (tensor.defined() && tensor.version() != saved_versions_[index])
    throw InvalidArgument(
        "backward: {} was changed after {} read it (version {} expected, {} found): its gradients would mix old values "
        "with new ones. Call "
        "backward() before the optimizer's step(), fill(), copy_from() or a load, or compute the loss again",
        describe(tensor), name(), saved_versions_[index], tensor.version());
  return tensor;
}

void Node::check_as_computed(const Tensor& tensor, const char* reader) {
  const Tensor* result = &tensor;
  for (;;) {
    const VariableState* state = result->defined() ? variable_of(*result) : nullptr;
    const Node* const node = state == nullptr ? nullptr : state->node.get();
    if (node == nullptr || node->released_ || result->version() == node->result_version_) return;
    // A view of a leaf has the leaf's values, old or new.
    const bool is_view = !node->inputs_.empty() && node->inputs_[0].defined() &&
                         node->inputs_[0].buffer().data() == result->buffer().data();
    if (!is_view)
      throw InvalidArgument(
          "{}: {} was changed in place after {} computed it (version {} expected, {} found): its gradient would go to "
          "the inputs of {}, "
          "which did not produce the new values. Write the new values into another tensor, such as "
          "detach(result).clone()",
          reader, describe(*result), node->name(), node->result_version_, result->version(), node->name());
    result = &node->inputs_[0];
  }
}

void Node::release() {
  release_members();
  drop(std::exchange(saved_, {}));
  drop(std::exchange(inputs_, {}));
  end_callbacks_.clear();
  result_hooks_.clear();
  released_ = true;
}

bool recording(std::span<const Tensor> inputs) {
  if (Trace::active()) return true;
  return !NoGrad::active() && std::any_of(inputs.begin(), inputs.end(),
                                          [](const Tensor& input) { return input.defined() && requires_grad(input); });
}

void attach(const Tensor& result, std::shared_ptr<Node> node) {
  if (node != nullptr) {
    for (const Tensor& input : node->inputs_) Node::check_as_computed(input, node->name());
    node->result_version_ = result.version();
  }
  if (Trace::active())
    Trace::note(result, node);  // and no segment releases the node
  else
    TapeSegment::note(node);
  ensure_variable(result).node = std::move(node);
}

std::shared_ptr<Node> node_of(const Tensor& tensor) {
  const VariableState* state = variable_of(tensor);
  return state == nullptr ? nullptr : state->node;
}

}  // namespace lockstep
