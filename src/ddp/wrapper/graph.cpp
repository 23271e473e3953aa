#include "lockstep/ddp/graph.h"

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/ddp/ddp.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/pass_watch.h"
#include "src/ddp/wrapper/has_sync_batch_norm.h"

namespace lockstep {

namespace {

// A graph that is being recorded on a device and in the group. It is dropped unless it is finished.
class Recording {
 public:
  Recording(Device& device, ProcessGroup& group) : device_(device), group_(group) {
    group_.begin_capture();
    try {
      device_.begin_capture(device_.default_stream());
    } catch (...) {
      group_.drop_capture();
      throw;
    }
  }
  ~Recording() {
    if (!is_open_) return;
    try {
      device_.end_capture(device_.default_stream());
    } catch (const std::exception& error) {
      log::debug("capture: dropped a graph: {}", error.what());
    }
    group_.drop_capture();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::unique_ptr<Graph> finish() {
    is_open_ = false;
    try {
      return device_.end_capture(device_.default_stream());
    } catch (...) {
      group_.drop_capture();
      throw;
    }
  }

 private:
  Device& device_;
  ProcessGroup& group_;
  bool is_open_ = true;
};

}  // namespace

class CapturedStep::Impl {
 public:
  Impl(DistributedDataParallel& ddp, std::function<Tensor()> step, const CaptureOptions& options)
      : ddp_(ddp),
        step_(std::move(step)),
        options_(options),
        parameters_(ddp.parameters()),
        device_(parameters_.front().tensor.device()) {
    if (!step_) throw InvalidArgument("capture: the step is an empty function");
    if (options_.warm_up < 1)
      throw InvalidArgument(
          "capture: warm_up is {}: at least one eager step is needed, in which libraries choose their kernels",
          options_.warm_up);
    if (ddp_.finds_unused_parameters())
      throw InvalidArgument(
          "capture: find_unused_parameters exchanges data at the end of each backward, but a replayed graph runs no "
          "host "
          "code: set .static_graph = true, which exchanges it once, or use every parameter");
    if (ddp_.on_nonfinite_gradient() != OnNonfiniteGradient::kIgnore)
      throw InvalidArgument(
          "capture: on_nonfinite_gradient makes the host check the gradients at the end of each backward, but a "
          "replayed graph runs no host code: leave it at kIgnore, and let a LossScaler skip such steps on the device");
    if (const CommHook& hook = ddp_.comm_hook(); hook && !hook->can_be_captured())
      throw InvalidArgument(
          "capture: the comm_hook {} counts its passes on the host, but a replayed graph runs no host code: call the "
          "step "
          "directly, or choose bf16, fp16, int8 or top_k, which can be captured",
          hook->describe());
    if (has_sync_batch_norm(ddp_.module()))
      throw InvalidArgument(
          "capture: SyncBatchNorm exchanges statistics in each forward, but a replayed graph runs no host code: call "
          "the step directly");
    if (device_.kind() == DeviceKind::kCpu)
      throw InvalidArgument(
          "capture: the model is on the CPU, where nothing can be recorded because each call is done when it returns: "
          "call "
          "the step directly");
    for (const auto& list : {ddp_.module().named_parameters(), ddp_.module().named_buffers()})
      for (const auto& [name, tensor] : list) memory_.push_back(tensor);
    for (const auto& [name, tensor] : parameters_) memory_.push_back(grad(tensor));
  }

  // The host may be steps ahead of its device. Wait for the last step before anything that it uses is destroyed.
  ~Impl() {
    try {
      last_replay_.wait();
    } catch (const std::exception& error) {
      log::debug("capture: the last replay did not end well: {}", error.what());
    }
    graph_.reset();  // first, because NCCL's communicator waits for the graph, which may be its last user
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Tensor run() {
    if (const PassPartner* partner = PassAccess::partner(ddp_); partner != nullptr)
      throw InvalidArgument("capture: {}", partner->reason_against_capture());
    if (ddp_.has_weight() || ddp_.is_joining())
      throw InvalidArgument(
          "capture: set_weight() and join() exchange data in each backward, but a replayed graph runs no host code: "
          "call "
          "the step directly with either of them");
    const bool moves_gradients = ddp_.rebuilds_buckets() && ddp_.synchronizes();
    if (counts_.eager < static_cast<std::size_t>(options_.warm_up) || moves_gradients || has_changed())
      return run_eagerly();
    if (!graph_) return record();
    launch();
    set_has_grads(left_grads_);
    ++counts_.replayed;
    return result_;
  }

  const Counts& counts() const { return counts_; }

 private:
  // The host values, besides memory addresses, that a recording depends on. If one differs, the graph does not match
  // the step.
  struct HostState {
    bool is_training = false, synchronizes = false, records_no_tape = false;
    DType cast = DType::kFloat32;
    bool operator==(const HostState&) const = default;
  };
  HostState host_state() const {
    return {ddp_.module().is_training(), ddp_.synchronizes(), NoGrad::active(), AutoCast::active()};
  }
  // Records which gradients backward adds to instead of overwriting them.
  void note_grads(std::vector<bool>& all) const {
    all.clear();
    for (const auto& [name, tensor] : parameters_) all.push_back(has_grad(tensor));
  }
  // Marks the gradients as the step did, after a replay.
  void set_has_grads(const std::vector<bool>& wanted) const {
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i])
        mark_grad_written(parameters_[i].tensor);
      else
        clear_grad(parameters_[i].tensor);
  }

  // Called before every replay, so it does not allocate.
  bool has_changed() const {
    if (host_state() != host_state_) return true;
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (memory_[i].buffer().data() != places_[i]) return true;
    if (!graph_) return false;  // a recording may start with any gradients
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (has_grad(parameters_[i].tensor) != found_grads_[i]) return true;
    return false;
  }

  void note_places() {
    places_.clear();
    for (const Tensor& tensor : memory_) places_.push_back(tensor.buffer().data());
  }

  // Runs the user's code and records the host values that it depends on.
  Tensor run_step() {
    host_state_ = host_state();
    note_places();
    note_grads(found_grads_);
    Tensor result = step_();
    note_grads(left_grads_);
    if (!result.defined()) throw InvalidArgument("capture: the step returned an undefined tensor: return its loss");
    return result;
  }

  Tensor run_eagerly() {
    graph_.reset();
    result_ = Tensor();
    ++counts_.eager;
    const bool moves_gradients = ddp_.rebuilds_buckets();
    Tensor result = run_step();
    if (moves_gradients) note_places();  // they moved at the end of the step
    return result;
  }

  Tensor record() {
    std::unique_ptr<Graph> graph;
    try {
      Recording recording(device_, ddp_.group());
      result_ = run_step();
      if (&result_.device() != &device_)
        throw InvalidArgument("the result is on {}, but the model is on {}: return a tensor on the model's device",
                              result_.device().name(), device_.name());
      graph = recording.finish();
    } catch (const InvalidArgument& error) {
      result_ = Tensor();
      throw InvalidArgument("capture: the step cannot be recorded as a graph: {}", error.what());
    }
    calls_ = ddp_.group().end_capture();
    graph_ = std::move(graph);
    result_ = result_.reshaped(result_.shape());  // without its history, which is used up
    launch();
    ++counts_.recorded;
    return result_;
  }

  // Throws if the group is over, because its collectives would find no peers and leave garbage in memory.
  void launch() {
    ddp_.group().backend(DeviceKind::kCuda).throw_if_over([] { return std::string("the launch of a captured step"); });
    PassAccess::in_step(ddp_).begin_replay();
    graph_->launch(device_.default_stream());
    last_replay_ = ddp_.group().replayed(calls_);
    for (const auto& [name, tensor] : parameters_) tensor.mark_changed();  // as step() does, which does not run
  }

  DistributedDataParallel& ddp_;
  const std::function<Tensor()> step_;
  const CaptureOptions options_;
  const std::vector<NamedTensor> parameters_;  // with gradients
  Device& device_;
  std::vector<Tensor> memory_;  // of the module and its gradients
  Counts counts_;
  // From the last run of the user's code.
  HostState host_state_;
  std::vector<const void*> places_;  // addresses of `memory_`
  std::vector<bool> found_grads_, left_grads_;

  std::unique_ptr<Graph> graph_;
  ProcessGroup::CapturedCalls calls_;
  Work last_replay_;
  Tensor result_;
};

CapturedStep::CapturedStep(DistributedDataParallel& ddp, std::function<Tensor()> step, const CaptureOptions& options)
    : impl_(std::make_unique<Impl>(ddp, std::move(step), options)) {}
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;
CapturedStep::~CapturedStep() = default;

Tensor CapturedStep::operator()() { return impl_->run(); }
const CapturedStep::Counts& CapturedStep::counts() const { return impl_->counts(); }

}  // namespace lockstep
