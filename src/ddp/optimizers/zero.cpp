#include "lockstep/ddp/zero.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/optimizers/shared_slices.h"
#include "src/ddp/optimizers/shared_squares.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/step_parts.h"
#include "src/reduce/bucket_memory.h"

namespace lockstep {

namespace {

using Slice = optim::StepParts::Slice;

constexpr const char* kInSlices =
    "with ZeroRedundancyOptimizer no rank has the complete average. Call zero_grad() first; to clip by the norm, set "
    "DistributedDataParallelOptions::max_grad_norm; to read or change gradients, train without it";
constexpr const char* kOfOneRank =
    "is only this rank's, from a backward under no_sync() or outside the wrapper: run one that reduces it before "
    "step()";

// Returns the part of a gradient, in elements, that is in bytes [begin, end) of its bucket.
Slice part_between(const Slot& slot, std::size_t count, std::size_t element, std::size_t begin, std::size_t end) {
  const auto elements_before = [&](std::size_t byte) {
    return byte <= slot.offset ? std::size_t{0} : std::min((byte - slot.offset) / element, count);
  };
  const std::size_t first = elements_before(begin);
  return {first, elements_before(end) - first};
}

// The products of an iteration of Newton-Schulz (optim/muon.h) for a matrix of m rows or columns and k >= m others.
std::int64_t cost_of(const Tensor& matrix) {
  const std::int64_t rows = matrix.shape().dims() == 0 ? 1 : matrix.shape()[0];
  const std::int64_t columns = rows == 0 ? 0 : matrix.count() / rows, m = std::min(rows, columns);
  return m * m * (2 * std::max(rows, columns) + m);
}

// Returns what must be the same on all ranks.
std::vector<std::string> lines_of(optim::Optimizer& optimizer, const optim::StepParts& parts) {
  std::vector<std::string> lines = {fmt::format("optimizer {} with {} groups, {} loss_scaler, {} custom loop",
                                                optimizer.kind(), optimizer.groups(), parts.scales_loss() ? "a" : "no",
                                                parts.can_share() ? "no" : "a")};
  for (const NamedTensor& parameter : optimizer.parameters())
    lines.push_back(fmt::format("parameter '{}' {}", parameter.name, parameter.tensor.shape().text()));
  return lines;
}

}  // namespace

// The gradients of a pass end up in one of three ways:
//   whole    each rank has the averages, as without this class: a comm_hook has left them, or ranks own tensors;
//   slices   each bucket is reduce-scattered;
//   own      nothing was reduced: ranks that share memory read each other's gradients.
// An optimizer that is not elementwise needs whole tensors: a rank's slice is then all of a tensor or nothing, and its
// owner broadcasts it. Other parameters of the wrapper may belong to another optimizer.
class ZeroRedundancyOptimizer::Impl : public PassPartner, public optim::StepOwner, public PartialAverages {
 public:
  Impl(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
      : ddp_(ddp),
        group_(ddp.group()),
        optimizer_(optimizer),
        parts_(optimizer),
        check_(PassAccess::check(ddp)),
        parameters_(ddp.parameters()) {
    refuse_on_all_ranks(group_, name(), refusal());
    check_same_on_all_ranks(group_, name(), lines_of(optimizer, parts_), "have different optimizers");
    indices_ = indices_in(optimizer, ddp);
    move_weights();
    slices_ = owns_tensors() ? owned() : slices();
    parts_.set_owner(*this);
    parts_.keep_slices(slices_, group_.world_size());
    find_ranks();
    if (!averages_are_whole())
      PassAccess::reducer(ddp).reduce_by([this](std::size_t b) { return keeps_own() ? Work() : scatter(b); });
    if (!averages_are_whole() && group_.world_size() > 1) check_.set_partial(ddp.reducer(), this);
    if (averages_are_whole()) follow_local_gradients();
    PassAccess::set_partner(ddp, this);
    if (shared_) parts_.share(shared_->updates());
  }

  ~Impl() override {
    Reducer& reducer = PassAccess::reducer(ddp_);
    reducer.abandon_pass();
    reducer.reduce_by({});
    check_.set_partial(reducer, nullptr);
    PassAccess::set_partner(ddp_, nullptr);
  }

  const char* name() const override { return "ZeroRedundancyOptimizer"; }

  std::size_t state_bytes() const {
    std::size_t bytes = 0;
    for (const optim::StatePart& part : optimizer_.state_parts())
      if (part.is_slice || (group_.world_size() == 1 && part.values.dtype() == DType::kFloat32))
        bytes += part.values.bytes();
    return bytes;
  }

  std::string refusal_of_join(const JoinOptions& options) const override {
    if (options.after_step) return "";
    return "ZeroRedundancyOptimizer: a step gathers the weights of all ranks, but a rank without data makes none: set "
           ".after_step to the optimizer's step()";
  }
  const char* reason_against_capture() const override {
    return "ZeroRedundancyOptimizer: the host manages the withheld gradients, but a replayed graph runs no host code: "
           "call the step "
           "directly";
  }

  void begin_pass(std::uint64_t step) override {
    pass_ = static_cast<std::int32_t>(step & 0x7fffffffU);
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && is_grad_withheld(tensor))
        abort_and_throw(
            group_,
            fmt::format("ZeroRedundancyOptimizer: rank {}, step {}: backward adds to the gradient of '{}', of which no "
                        "rank has the complete average: call zero_grad() before each backward, except "
                        "after one under no_sync()",
                        group_.rank(), step, name));
  }

  void end_pass() override {
    std::fill(is_local_.begin(), is_local_.end(), std::uint8_t{0});
    if (averages_are_whole()) return;
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && has_grad(tensor)) withhold_grad(tensor, kInSlices);
  }

  bool keeps_own() const override { return !averages_are_whole() && shared_.has_value(); }
  std::pair<std::size_t, std::size_t> range_of(std::size_t gradient) const override {
    const Slice& slice = slices_[indices_[gradient]];
    return {slice.begin, slice.count};
  }
  void sum_squares(const Tensor& sums) override {
    if (keeps_own()) return shared_->squares().sum(sums, pass_);
    Device& device = sums.device();
    group_
        .all_reduce_async(sums.data<double>(), static_cast<std::size_t>(sums.count()), DType::kFloat64, ReduceOp::kSum,
                          {.purpose = {"squares of slices"}, .device = device.kind()})
        .stream_wait(device.default_stream());
  }

  void step() override {
    check_step();
    parts_.begin();
    shared_ ? step_in_shared_memory() : step_by_calls();
    parts_.end();
  }

 private:
  // Updates bucket by bucket: while one bucket's weights are gathered, the next one's slice is updated.
  void step_by_calls() {
    agree_on_bad_gradients();
    const std::vector<BucketLayout>& buckets = ddp_.reducer().buckets();
    works_.clear();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      bucket_parameters_.clear();
      for (const Slot& slot : buckets[b].slots)
        if (has_grad(parameters_[slot.gradient].tensor) && indices_[slot.gradient] != kNotInOptimizer)
          bucket_parameters_.push_back(indices_[slot.gradient]);
      if (bucket_parameters_.empty()) continue;  // the same on all ranks
      parts_.update(bucket_parameters_);
      owns_tensors() ? send_owned(b) : works_.push_back(gather(b));
    }
    for (Work& work : works_) work.stream_wait(optimizer_.parameters().front().tensor.device().default_stream());
  }

  // One pass over this rank's slices reads the gradients of all ranks, or its averages if they are whole, updates, and
  // writes the weights of all ranks. It runs between two barriers: the first after the last use of the weights, the
  // second before the next use. A barrier publishes all that its rank has stored before, here gradients and weights; an
  // update that stores past the caches orders these stores before it returns. As no call in backward does so, the
  // barriers also compare the pass's number and the number of updated parameters.
  void step_in_shared_memory() {
    bucket_parameters_.clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (has_grad(parameters_[i].tensor)) bucket_parameters_.push_back(indices_[i]);
    group_.barrier({.purpose = {"gradients of pass", pass_}});
    parts_.update(bucket_parameters_);
    group_.barrier({.purpose = {"updated parameters", static_cast<std::int32_t>(bucket_parameters_.size())}});
  }

  std::string refusal() const {
    if (std::string reason = refusal_of_pair(ddp_, optimizer_, owns_tensors()); !reason.empty()) return reason;
    if (ddp_.comm_hook() && !ddp_.comm_hook()->averages())
      return fmt::format(
          "the comm_hook {} leaves each rank its own gradients, so each slice of the weights would follow only one "
          "rank's: "
          "use a hook that averages, or train without ZeroRedundancyOptimizer",
          ddp_.comm_hook()->describe());
    return "";
  }

  bool owns_tensors() const { return !parts_.is_elementwise(); }
  bool averages_are_whole() const { return ddp_.comm_hook() || owns_tensors(); }

  // Gradients that are not withheld do not show whether they were averaged.
  void follow_local_gradients() {
    is_local_.resize(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (requires_grad(parameters_[i].tensor))
        hooks_.push_back(register_grad_hook(parameters_[i].tensor, [this, i](const Tensor&) { is_local_[i] = 1; }));
  }

  std::size_t bytes_of_slice(std::size_t bucket) const {
    return slice_bytes(ddp_.reducer().buckets()[bucket], group_.world_size());
  }
  std::size_t own_begin(std::size_t bucket) const {
    return bytes_of_slice(bucket) * static_cast<std::size_t>(group_.rank());
  }

  // Moves the weights into buckets with the same layout as the gradients. One bucket at a time exists twice, on a GPU
  // one allocation of BucketMemory; its old memory is returned to the system, because nothing allocates blocks of these
  // sizes again.
  void move_weights() {
    const Reducer& reducer = ddp_.reducer();
    places_.resize(parameters_.size());
    BucketMemory memories(group_, reducer.buckets());
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
      const BucketLayout& layout = reducer.buckets()[b];
      const Buffer memory = memories.next();
      for (const Slot& slot : layout.slots) {
        const Tensor& parameter = parameters_[slot.gradient].tensor;
        const Buffer place = memory_on(parameter.device(), memory.window(slot.offset, parameter.bytes()));
        Tensor::wrap(place, parameter.shape(), parameter.dtype()).copy_from(parameter);
        parameter.rebind(place);
        places_[slot.gradient] = place.data();
      }
      parameters_.front().tensor.device().empty_cache();  // an optimizer's parameters are on one device
      weights_.push_back(memory);
    }
  }

  // Indexed like the optimizer's parameters.
  std::vector<Slice> slices() const {
    std::vector<Slice> slices(parameters_.size());
    const Reducer& reducer = ddp_.reducer();
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b)
      for (const Slot& slot : reducer.buckets()[b].slots) {
        const GradientInfo& gradient = reducer.gradients()[slot.gradient];
        slices[indices_[slot.gradient]] =
            part_between(slot, gradient.count, size_of(gradient.dtype), own_begin(b), own_begin(b) + bytes_of_slice(b));
      }
    return slices;
  }

  // The same for whole tensors. The costliest goes to an owner first, each to the one with the least so far.
  std::vector<Slice> owned() {
    std::vector<std::int64_t> costs;
    for (const NamedTensor& parameter : optimizer_.parameters()) costs.push_back(cost_of(parameter.tensor));
    owners_ = ranks_that_sum(costs, group_.world_size());
    std::vector<Slice> slices;
    for (std::size_t i = 0; i < costs.size(); ++i)
      slices.push_back(
          {0, owners_[i] == group_.rank() ? static_cast<std::size_t>(optimizer_.parameters()[i].tensor.count()) : 0});
    return slices;
  }

  // Gradients and weights in shared memory, if all ranks have mapped each other's buckets. Not with loss scaling, where
  // a step depends on all averages.
  void find_ranks() {
    if (group_.world_size() == 1 || parts_.scales_loss() || !parts_.can_share()) return;
    const bool are_whole = averages_are_whole();
    shared_.emplace(group_, SharedSlices::Layout{ddp_.reducer(), weights_, indices_, slices_},
                    SharedSlices::Options{.averages_are_whole = are_whole,
                                          .sums_squares = check_.is_on() && !are_whole,
                                          .clip_factor = are_whole ? nullptr : check_.clip_factor()});
    if (shared_->updates().empty()) shared_.reset();
  }

  Work scatter(std::size_t b) const {
    const BucketLayout& layout = ddp_.reducer().buckets()[b];
    std::byte* const data = ddp_.reducer().memory(b).data();
    return group_.reduce_scatter_async(
        data, data + own_begin(b), bytes_of_slice(b) / size_of(layout.dtype), layout.dtype, ReduceOp::kAvg,
        {.purpose = {"bucket slices", static_cast<std::int32_t>(b)}, .device = layout.device});
  }

  Work gather(std::size_t b) const {
    const BucketLayout& layout = ddp_.reducer().buckets()[b];
    return group_.all_gather_async(weights_[b].data() + own_begin(b), weights_[b].data(),
                                   bytes_of_slice(b) / size_of(layout.dtype), layout.dtype,
                                   {.purpose = {"weights", static_cast<std::int32_t>(b)}, .device = layout.device});
  }

  // The tensors of bucket_parameters_, from each owner to all.
  void send_owned(std::size_t b) {
    for (int root = 0; root < group_.world_size(); ++root) {
      std::vector<Region> regions;
      for (const std::size_t i : bucket_parameters_) {
        const Tensor& tensor = optimizer_.parameters()[i].tensor;
        if (owners_[i] == root && tensor.count() != 0)
          regions.push_back({tensor.data<float>(), static_cast<std::size_t>(tensor.count())});
      }
      if (!regions.empty())
        works_.push_back(group_.broadcast_coalesced_async(
            regions, DType::kFloat32, root,
            {.purpose = {"weights", static_cast<std::int32_t>(b)}, .device = ddp_.reducer().buckets()[b].device}));
    }
  }

  // A rank has only its slices, so a bad gradient on one rank makes all skip.
  void agree_on_bad_gradients() {
    LossScaleState* const scale = parts_.find_bad_gradients();
    if (scale == nullptr) return;
    Device& device = parameters_.front().tensor.device();
    group_
        .all_reduce_async(&scale->found_bad, 1, DType::kFloat32, ReduceOp::kMax,
                          {.purpose = {"bad gradients"}, .device = device.kind()})
        .stream_wait(device.default_stream());
  }

  void check_step() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [name, tensor] = parameters_[i];
      if (tensor.buffer().data() != places_[i])
        throw InvalidArgument(
            "{}::step: parameter '{}' was moved after the ZeroRedundancyOptimizer was made: move the module first",
            optimizer_.kind(), name);
      if (has_grad(tensor) && (averages_are_whole() ? is_local_[i] != 0 : !is_grad_withheld(tensor)))
        throw InvalidArgument("{}::step: the gradient of '{}' {}", optimizer_.kind(), name, kOfOneRank);
    }
  }

  DistributedDataParallel& ddp_;
  ProcessGroup& group_;
  optim::Optimizer& optimizer_;
  optim::StepParts parts_;
  GradientCheck& check_;
  const std::vector<NamedTensor> parameters_;  // by the reducer's index
  std::vector<std::size_t> indices_;           // indices into the optimizer's parameters, or kNotInOptimizer
  std::vector<Buffer> weights_;                // by bucket
  std::vector<const void*> places_;            // addresses of the parameters in them
  std::vector<Work> works_;
  std::vector<Slice> slices_;           // indexed like the optimizer's parameters
  std::vector<int> owners_;             // the same; empty: each rank has slices
  std::optional<SharedSlices> shared_;  // empty: gradients and weights are exchanged by calls
  std::vector<std::size_t> bucket_parameters_;
  std::vector<HookHandle> hooks_;
  std::vector<std::uint8_t> is_local_;  // whole averages: whether a gradient has not been averaged by a pass
  std::int32_t pass_ = 0;               // number of the last pass
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : impl_(std::make_unique<Impl>(ddp, optimizer)) {}
ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;
std::size_t ZeroRedundancyOptimizer::state_bytes() const { return impl_->state_bytes(); }

}  // namespace lockstep
