#include "lockstep/ddp/zero.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/ddp/options.h"
#include "src/ddp/pass_partner.h"
#include "src/ddp/replicas.h"
#include "src/optim/step_parts.h"

namespace lockstep {

namespace {

using Slice = optim::StepParts::Slice;

constexpr const char* kInSlices =
    "under ZeroRedundancyOptimizer no rank has the whole average. Call zero_grad() first; to clip, or to look at gradients, train without "
    "it";

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
  std::vector<std::string> lines = {fmt::format("optimizer {} with {} groups, {} loss_scaler, {} loop of its own", optimizer.kind(),
                                                optimizer.groups(), parts.scales_loss() ? "a" : "no", parts.can_share() ? "no" : "a")};
  for (const NamedTensor& parameter : optimizer.parameters())
    lines.push_back(fmt::format("parameter '{}' {}", parameter.name, parameter.tensor.shape().text()));
  return lines;
}

}  // namespace

class ZeroRedundancyOptimizer::Impl : public PassPartner, public optim::StepOwner {
 public:
  Impl(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
      : ddp_(ddp), group_(ddp.group()), optimizer_(optimizer), parts_(optimizer), parameters_(ddp.parameters()) {
    refuse_on_all_ranks(group_, name(), refusal());
    check_same_lines(group_, lines_of(optimizer, parts_), name(), "have different optimizers");
    indices_ = indices_in(optimizer, ddp);
    move_weights();
    slices_ = slices();
    parts_.keep_slices(slices_, group_.world_size());
    find_ranks();
    PassAccess::reducer(ddp).reduce_by([this](std::size_t bucket) { return ranks_.empty() ? scatter(bucket) : Work(); });
    PassAccess::set_partner(ddp, this);
    parts_.set_owner(*this);
    parts_.share(ranks_);
  }

  ~Impl() override {
    Reducer& reducer = PassAccess::reducer(ddp_);
    reducer.abandon_pass();
    reducer.reduce_by({});
    PassAccess::set_partner(ddp_, nullptr);
  }

  const char* name() const override { return "ZeroRedundancyOptimizer"; }

  std::size_t state_bytes() const {
    std::size_t bytes = 0;
    for (const optim::StatePart& part : optimizer_.state_parts())
      if (part.is_slice || (group_.world_size() == 1 && part.values.dtype() == DType::kFloat32)) bytes += part.values.bytes();
    return bytes;
  }

  std::string refusal_of_join(const JoinOptions& options) const override {
    if (options.after_step) return "";
    return "ZeroRedundancyOptimizer: a step gathers weights of all ranks, and a rank without data makes none: set .after_step to the "
           "optimizer's step()";
  }
  const char* reason_against_capture() const override {
    return "ZeroRedundancyOptimizer: withheld gradients are the host's to keep, and a replayed graph runs none of its code: call the step "
           "directly";
  }

  void begin_pass(std::uint64_t step) override {
    pass_ = static_cast<std::int32_t>(step & 0x7fffffffU);
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && is_grad_withheld(tensor))
        fail_on_all_ranks(group_,
                          fmt::format("ZeroRedundancyOptimizer: rank {}, step {}: backward adds to the gradient of '{}', of which no "
                                      "rank has the whole average: call zero_grad() before each backward but those "
                                      "that follow one under no_sync()",
                                      group_.rank(), step, name));
  }

  void end_pass() override {
    for (const auto& [name, tensor] : parameters_)
      if (requires_grad(tensor) && has_grad(tensor)) withhold_grad(tensor, kInSlices);
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

  // Gradients have stayed as they were. One pass over this rank's slices reads those of all ranks, updates, and writes to all ranks'
  // weights: between two barriers, the first behind the last use of the weights, the second before the next. They also compare what no
  // call in backward has: that the ranks are in the same pass, and update as many parameters.
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
    if (ddp_.comm_hook())
      return "the wrapper has a comm_hook, which leaves whole buckets on every rank: ZeRO reduces slices by itself. Leave the hook out";
    if (PassAccess::looks_at_gradients(ddp_))
      return "the wrapper has max_grad_norm or on_nonfinite_gradient, which look at whole averages, and each rank has slices alone";
    if (!parts_.is_elementwise())
      return fmt::format("{} is not elementwise: the update of an element reads others of its tensor, and a rank has slices of tensors",
                         optimizer_.kind());
    return "";
  }

  std::size_t bytes_of_slice(std::size_t bucket) const { return slice_bytes(ddp_.reducer().buckets()[bucket], group_.world_size()); }
  std::size_t own_begin(std::size_t bucket) const { return bytes_of_slice(bucket) * static_cast<std::size_t>(group_.rank()); }

  // The weights of a bucket lie as its gradients do. Those of one bucket at a time are there twice: what they leave nothing else asks for.
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
    const Reducer& reducer = ddp_.reducer();
    const auto world = static_cast<std::size_t>(group_.world_size());
    if (world == 1 || parts_.scales_loss() || !parts_.can_share()) return;
    std::vector<std::vector<std::byte*>> gradients, weights;  // by bucket and rank
    for (std::size_t b = 0; b < weights_.size(); ++b) {
      const DeviceKind device = reducer.buckets()[b].device;
      gradients.push_back(group_.peer_addresses(reducer.memory(b).data(), weights_[b].bytes(), device));
      weights.push_back(group_.peer_addresses(weights_[b].data(), weights_[b].bytes(), device));
      if (gradients.back().empty() || weights.back().empty()) return;
    }
    grads_.resize(parameters_.size() * world);
    copies_.resize(parameters_.size() * (world - 1));
    ranks_.resize(parameters_.size());
    for (std::size_t b = 0; b < weights_.size(); ++b)
      for (const Slot& slot : reducer.buckets()[b].slots) {
        const std::size_t i = indices_[slot.gradient], first = slot.offset + slices_[i].begin * sizeof(float);
        const float** grad = &grads_[i * world];
        float** copy = &copies_[i * (world - 1)];
        ranks_[i] = {{grad, world}, {copy, world - 1}};
        for (std::size_t rank = 0; rank < world; ++rank) {
          *grad++ = reinterpret_cast<const float*>(gradients[b][rank] + first);
          if (rank != static_cast<std::size_t>(group_.rank())) *copy++ = reinterpret_cast<float*>(weights[b][rank] + first);
        }
      }
  }

  Work scatter(std::size_t b) const {
    const BucketLayout& layout = ddp_.reducer().buckets()[b];
    std::byte* const data = ddp_.reducer().memory(b).data();
    return group_.reduce_scatter_async(data, data + own_begin(b), bytes_of_slice(b) / size_of(layout.dtype), layout.dtype, ReduceOp::kAvg,
                                       {.purpose = {"bucket slices", static_cast<std::int32_t>(b)}, .device = layout.device});
  }

  Work gather(std::size_t b) const {
    const BucketLayout& layout = ddp_.reducer().buckets()[b];
    return group_.all_gather_async(weights_[b].data() + own_begin(b), weights_[b].data(), bytes_of_slice(b) / size_of(layout.dtype),
                                   layout.dtype, {.purpose = {"weights", static_cast<std::int32_t>(b)}, .device = layout.device});
  }

  // A rank sees its slices alone: what one finds bad all skip.
  void agree_on_bad_gradients() {
    LossScaleState* const scale = parts_.find_bad_gradients();
    if (scale == nullptr) return;
    Device& device = parameters_.front().tensor.device();
    group_.all_reduce_async(&scale->found_bad, 1, DType::kFloat32, ReduceOp::kMax, {.purpose = {"bad gradients"}, .device = device.kind()})
        .stream_wait(device.default_stream());
  }

  void check_step() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [name, tensor] = parameters_[i];
      if (tensor.buffer().data() != places_[i])
        throw InvalidArgument("{}::step: parameter '{}' was moved after the ZeroRedundancyOptimizer was made: move the module first",
                              optimizer_.kind(), name);
      if (has_grad(tensor) && !is_grad_withheld(tensor))
        throw InvalidArgument(
            "{}::step: the gradient of '{}' is this rank's own, of a backward under no_sync() or outside of the wrapper: one that reduces "
            "it "
            "must follow before step()",
            optimizer_.kind(), name);
    }
  }

  DistributedDataParallel& ddp_;
  ProcessGroup& group_;
  optim::Optimizer& optimizer_;
  optim::StepParts parts_;
  const std::vector<NamedTensor> parameters_;  // by the reducer's index
  std::vector<std::size_t> indices_;           // in the optimizer
  std::vector<Buffer> weights_;                // by bucket
  std::vector<const void*> places_;            // of the parameters within them
  std::vector<Work> works_;
  std::vector<Slice> slices_;        // by the optimizer's index, as those below
  std::vector<const float*> grads_;  // of all ranks, by parameter and rank
  std::vector<float*> copies_;       // of the other ranks
  std::vector<UpdateRanks> ranks_;   // views of both; empty: gradients and weights travel by calls
  std::vector<std::size_t> bucket_parameters_;
  std::int32_t pass_ = 0;  // the last one's number
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : impl_(std::make_unique<Impl>(ddp, optimizer)) {}
ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;
std::size_t ZeroRedundancyOptimizer::state_bytes() const { return impl_->state_bytes(); }

}  // namespace lockstep
