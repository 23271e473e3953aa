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
#include "src/ddp/optimizers/shared_squares.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/step_parts.h"

namespace lockstep {

namespace {

using Slice = optim::StepParts::Slice;
using Addresses = std::vector<std::vector<std::byte*>>;  // by bucket and rank

constexpr const char* kInSlices =
    "under ZeroRedundancyOptimizer no rank has the whole average. Call zero_grad() first; to clip by the norm, set "
    ".max_grad_norm of "
    "DistributedDataParallelOptions; to look at gradients, or to change them by hand, train without it";
constexpr const char* kOfOneRank =
    "is this rank's own, of a backward under no_sync() or outside of the wrapper: one that reduces it must follow "
    "before step()";

// The part of a gradient, in elements, that lies in bytes [begin, end) of its bucket.
Slice part_between(const Slot& slot, std::size_t count, std::size_t element, std::size_t begin, std::size_t end) {
  const auto elements_before = [&](std::size_t byte) {
    return byte <= slot.offset ? std::size_t{0} : std::min((byte - slot.offset) / element, count);
  };
  const std::size_t first = elements_before(begin);
  return {first, elements_before(end) - first};
}

// What the ranks must have in common.
std::vector<std::string> lines_of(optim::Optimizer& optimizer, const optim::StepParts& parts) {
  std::vector<std::string> lines = {fmt::format("optimizer {} with {} groups, {} loss_scaler, {} loop of its own",
                                                optimizer.kind(), optimizer.groups(), parts.scales_loss() ? "a" : "no",
                                                parts.can_share() ? "no" : "a")};
  for (const NamedTensor& parameter : optimizer.parameters())
    lines.push_back(fmt::format("parameter '{}' {}", parameter.name, parameter.tensor.shape().text()));
  return lines;
}

}  // namespace

// Gradients of a pass end up in one of three ways:
//   whole    a comm_hook has left the averages on every rank, as without this class;
//   slices   each bucket is reduce-scattered;
//   own      nothing was reduced: ranks that share memory read each other's gradients.
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
    slices_ = slices();
    parts_.keep_slices(slices_, group_.world_size());
    find_ranks();
    if (!averages_are_whole())
      PassAccess::reducer(ddp).reduce_by([this](std::size_t b) { return keeps_own() ? Work() : scatter(b); });
    if (!averages_are_whole() && group_.world_size() > 1) check_.set_partial(ddp.reducer(), this);
    if (averages_are_whole()) follow_local_gradients();
    PassAccess::set_partner(ddp, this);
    parts_.set_owner(*this);
    parts_.share(ranks_);
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
    return "ZeroRedundancyOptimizer: a step gathers weights of all ranks, and a rank without data makes none: set "
           ".after_step to the "
           "optimizer's step()";
  }
  const char* reason_against_capture() const override {
    return "ZeroRedundancyOptimizer: withheld gradients are the host's to keep, and a replayed graph runs none of its "
           "code: call the step "
           "directly";
  }

  void begin_pass(std::uint64_t step) override {
    pass_ = static_cast<std::int32_t>(step & 0x7fffffffU);
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && is_grad_withheld(tensor))
        abort_and_throw(
            group_,
            fmt::format("ZeroRedundancyOptimizer: rank {}, step {}: backward adds to the gradient of '{}', of which no "
                        "rank has the whole average: call zero_grad() before each backward but those "
                        "that follow one under no_sync()",
                        group_.rank(), step, name));
  }

  void end_pass() override {
    std::fill(is_local_.begin(), is_local_.end(), std::uint8_t{0});
    if (averages_are_whole()) return;
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && has_grad(tensor)) withhold_grad(tensor, kInSlices);
  }

  bool keeps_own() const override { return !averages_are_whole() && !ranks_.empty(); }
  std::pair<std::size_t, std::size_t> range_of(std::size_t gradient) const override {
    const Slice& slice = slices_[indices_[gradient]];
    return {slice.begin, slice.count};
  }
  void sum_squares(const Tensor& sums) override {
    if (keeps_own()) return squares_->sum(sums, pass_);
    Device& device = sums.device();
    group_
        .all_reduce_async(sums.data<double>(), static_cast<std::size_t>(sums.count()), DType::kFloat64, ReduceOp::kSum,
                          {.purpose = {"squares of slices"}, .device = device.kind()})
        .stream_wait(device.default_stream());
  }

  void step() override {
    check_step();
    parts_.begin();
    ranks_.empty() ? step_by_calls() : step_in_shared_memory();
    parts_.end();
  }

 private:
  // Bucket by bucket: while one bucket's weights are gathered, the next one's slice is updated.
  void step_by_calls() {
    agree_on_bad_gradients();
    const std::vector<BucketLayout>& buckets = ddp_.reducer().buckets();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      bucket_parameters_.clear();
      for (const Slot& slot : buckets[b].slots)
        if (has_grad(parameters_[slot.gradient].tensor)) bucket_parameters_.push_back(indices_[slot.gradient]);
      works_[b] = {};
      if (bucket_parameters_.empty()) continue;  // on all ranks
      parts_.update(bucket_parameters_);
      works_[b] = gather(b);
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) works_[b].stream_wait(weights_[b].device()->default_stream());
  }

  // One pass over this rank's slices reads the gradients of all ranks, or its averages where they are whole, updates,
  // and writes to all ranks' weights: between two barriers, the first behind the last use of the weights, the second
  // before the next. They also compare what no call in backward has: that the ranks are in the same pass, and update as
  // many parameters.
  void step_in_shared_memory() {
    bucket_parameters_.clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (has_grad(parameters_[i].tensor)) bucket_parameters_.push_back(indices_[i]);
    group_.barrier({.purpose = {"gradients of pass", pass_}});
    parts_.update(bucket_parameters_);
    group_.barrier({.purpose = {"updated parameters", static_cast<std::int32_t>(bucket_parameters_.size())}});
  }

  std::string refusal() const {
    if (std::string reason = refusal_of_pair(ddp_, optimizer_); !reason.empty()) return reason;
    if (ddp_.comm_hook() && !ddp_.comm_hook()->averages())
      return fmt::format(
          "the comm_hook {} leaves each rank its own gradients, and each slice of the weights would follow one rank's "
          "alone: "
          "take a hook that averages, or train without ZeroRedundancyOptimizer",
          ddp_.comm_hook()->describe());
    if (!parts_.is_elementwise())
      return fmt::format(
          "{} is not elementwise: the update of an element reads others of its tensor, and a rank has slices of "
          "tensors",
          optimizer_.kind());
    return "";
  }

  bool averages_are_whole() const { return static_cast<bool>(ddp_.comm_hook()); }

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

  // The weights of a bucket lie as its gradients do. Those of one bucket at a time are there twice: what they leave
  // nothing else asks for.
  void move_weights() {
    const Reducer& reducer = ddp_.reducer();
    places_.resize(parameters_.size());
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
      const BucketLayout& layout = reducer.buckets()[b];
      const Buffer memory = group_.allocate(reducer.memory(b).bytes(), layout.device);
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
    works_.resize(weights_.size());
  }

  // By the optimizer's index.
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

  // Where all ranks have mapped each other's buckets. Not under loss scaling, whose step depends on all averages.
  void find_ranks() {
    const auto world = static_cast<std::size_t>(group_.world_size());
    if (world == 1 || parts_.scales_loss() || !parts_.can_share()) return;
    const Reducer& reducer = ddp_.reducer();
    Addresses gradients, weights;
    for (std::size_t b = 0; b < weights_.size(); ++b) {
      const DeviceKind device = reducer.buckets()[b].device;
      gradients.push_back(group_.peer_addresses(reducer.memory(b).data(), weights_[b].bytes(), device));
      weights.push_back(group_.peer_addresses(weights_[b].data(), weights_[b].bytes(), device));
      if (gradients.back().empty() || weights.back().empty()) return;
    }
    if (averages_are_whole())  // on this rank, too
      for (std::vector<std::byte*>& of_ranks : gradients)
        of_ranks = {of_ranks[static_cast<std::size_t>(group_.rank())]};
    share_slices(gradients, weights);
    if (check_.is_on() && !averages_are_whole()) share_squares(gradients);
  }

  void share_slices(const Addresses& gradients, const Addresses& weights) {
    const std::size_t others = weights.front().size() - 1, grads = gradients.front().size();
    grads_.resize(parameters_.size() * grads);
    copies_.resize(parameters_.size() * others);
    ranks_.resize(parameters_.size());
    const float* const factor = averages_are_whole() ? nullptr : check_.clip_factor();
    for (std::size_t b = 0; b < weights.size(); ++b)
      for (const Slot& slot : ddp_.reducer().buckets()[b].slots) {
        const std::size_t i = indices_[slot.gradient], first = slot.offset + slices_[i].begin * sizeof(float);
        const float** grad = &grads_[i * grads];
        float** copy = &copies_[i * others];
        ranks_[i] = {{grad, grads}, {copy, others}, factor};
        for (std::byte* const of_rank : gradients[b]) *grad++ = reinterpret_cast<const float*>(of_rank + first);
        for (std::size_t rank = 0; rank <= others; ++rank)
          if (rank != static_cast<std::size_t>(group_.rank()))
            *copy++ = reinterpret_cast<float*>(weights[b][rank] + first);
      }
  }

  void share_squares(const Addresses& gradients) {
    std::vector<std::int64_t> counts;
    std::vector<const float*> grads;
    for (std::size_t b = 0; b < gradients.size(); ++b)
      for (const Slot& slot : ddp_.reducer().buckets()[b].slots) {
        counts.push_back(parameters_[slot.gradient].tensor.count());
        for (std::byte* const of_rank : gradients[b])
          grads.push_back(reinterpret_cast<const float*>(of_rank + slot.offset));
      }
    squares_.emplace(group_, counts, std::move(grads));
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

  // A rank sees its slices alone: what one finds bad all skip.
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
  std::vector<std::size_t> indices_;           // in the optimizer
  std::vector<Buffer> weights_;                // by bucket
  std::vector<const void*> places_;            // of the parameters within them
  std::vector<Work> works_;
  std::vector<Slice> slices_;        // by the optimizer's index, as those below
  std::vector<const float*> grads_;  // by parameter and rank, where they are not whole
  std::vector<float*> copies_;       // of the other ranks
  std::vector<UpdateRanks> ranks_;   // views of both; empty: gradients and weights travel by calls
  std::optional<SharedSquares> squares_;
  std::vector<std::size_t> bucket_parameters_;
  std::vector<HookHandle> hooks_;
  std::vector<std::uint8_t> is_local_;  // whole averages: is a gradient there that no pass has averaged?
  std::int32_t pass_ = 0;               // the last one's number
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : impl_(std::make_unique<Impl>(ddp, optimizer)) {}
ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;
std::size_t ZeroRedundancyOptimizer::state_bytes() const { return impl_->state_bytes(); }

}  // namespace lockstep
