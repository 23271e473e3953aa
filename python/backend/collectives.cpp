// Collectives whose tensors are whole: one tensor in, one tensor out, or several of these in one call.
#include <utility>

#include "python/backend/errors.h"
#include "python/backend/lockstep_backend.h"

namespace lockstep::torch_backend {

namespace {

using c10d::OpType;

CallOptions with_factor(CallOptions call, const Reduction& reduction) {
  call.factor = reduction.factor();
  return call;
}

std::vector<Region> regions_of(const std::vector<Operand>& operands) {
  std::vector<Region> regions;
  for (const Operand& operand : operands) regions.push_back({operand.data(), operand.count()});
  return regions;
}

}  // namespace

void LockstepBackend::check_root(const char* call, std::int64_t root) const {
  if (root < 0 || root >= getSize())
    refuse(call, getRank(), "got root " + std::to_string(root) + "; expected 0 to " + std::to_string(getSize() - 1));
}

void LockstepBackend::check_single(const char* call, const Tensors& tensors) const {
  if (tensors.size() != 1) refuse(call, getRank(), "got " + std::to_string(tensors.size()) + " tensors; expected one");
  check_tensor(call, getRank(), tensors[0]);
}

// `whole` has a part like `part` for each rank.
void LockstepBackend::check_flat(const char* call, const at::Tensor& whole, const at::Tensor& part) const {
  check_tensors(call, getRank(), {whole, part});
  if (whole.numel() != part.numel() * getSize())
    refuse(call, getRank(),
           "got tensors of " + std::to_string(whole.numel()) + " and " + std::to_string(part.numel()) +
               " elements; the first must have " + std::to_string(getSize()) + " times the elements of the second");
}

LockstepBackend::WorkPointer LockstepBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_single("broadcast", tensors);
  check_root("broadcast", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  return issue(call_of(OpType::BROADCAST, "lockstep:broadcast", options, tensors, tensors),
               [this, root, operand = moved(tensors[0], root == getRank() ? Access::kRead : Access::kWrite)](
                   const CallOptions& call) mutable {
                 operand.prepare();
                 group_->broadcast(operand.data(), operand.count(), operand.dtype(), root, call);
                 operand.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_single("all_reduce", tensors);
  const Reduction reduction("all_reduce", getRank(), options.reduceOp, tensors[0].scalar_type());
  return issue(
      call_of(OpType::ALLREDUCE, "lockstep:all_reduce", options, tensors, tensors),
      [this, reduction, operand = reduction.operand(tensors[0], Access::kReadWrite)](const CallOptions& call) mutable {
        operand.prepare();
        group_->all_reduce(operand.data(), operand.count(), operand.dtype(), reduction.op(),
                           with_factor(call, reduction));
        operand.copy_back();
      });
}

LockstepBackend::WorkPointer LockstepBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions&) {
  check_single("all_reduce", tensors);  // refuses sparse tensors
  refuse("all_reduce", getRank(), "sparse indices are not supported; call to_dense() first");
}

LockstepBackend::WorkPointer LockstepBackend::allreduce_coalesced(Tensors& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  check_tensors("all_reduce_coalesced", getRank(), tensors);
  const Reduction reduction("all_reduce_coalesced", getRank(), options.reduceOp, tensors[0].scalar_type());
  std::vector<Operand> operands;
  for (const at::Tensor& tensor : tensors) operands.push_back(reduction.operand(tensor, Access::kReadWrite));
  return issue(call_of(OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce_coalesced", options, tensors, tensors),
               [this, reduction, operands = std::move(operands)](const CallOptions& call) mutable {
                 for (Operand& operand : operands) operand.prepare();
                 group_->all_reduce_coalesced(regions_of(operands), reduction.elements().dtype, reduction.op(),
                                              with_factor(call, reduction));
                 for (Operand& operand : operands) operand.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_single("reduce", tensors);
  check_root("reduce", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  const Reduction reduction("reduce", getRank(), options.reduceOp, tensors[0].scalar_type());
  const bool is_root = root == getRank();
  return issue(call_of(OpType::REDUCE, "lockstep:reduce", options, tensors, tensors),
               [this, root, is_root, reduction,
                operand = reduction.operand(tensors[0], is_root ? Access::kReadWrite : Access::kRead)](
                   const CallOptions& call) mutable {
                 operand.prepare();
                 group_->reduce(operand.data(), is_root ? operand.data() : nullptr, operand.count(), operand.dtype(),
                                reduction.op(), root, with_factor(call, reduction));
                 operand.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::all_gather_single(at::Tensor& output, at::Tensor& input,
                                                                const c10d::AllgatherOptions& options) {
  check_flat("all_gather_into_tensor", output, input);
  return issue(call_of(OpType::_ALLGATHER_BASE, "lockstep:_all_gather_base", options, {input}, {output}),
               [this, send = moved(input, Access::kRead),
                receive = moved(output, Access::kWrite)](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 group_->all_gather(send.data(), receive.data(), send.count(), send.dtype(), call);
                 receive.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions& options) {
  constexpr auto kCall = "all_gather_into_tensor_coalesced";
  if (outputs.size() != inputs.size() || inputs.empty())
    refuse(kCall, getRank(),
           "got " + std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) +
               " outputs; the counts must match");
  std::vector<std::pair<Operand, Operand>> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_flat(kCall, outputs[i], inputs[i]);
    pairs.emplace_back(moved(inputs[i], Access::kRead), moved(outputs[i], Access::kWrite));
  }
  return issue(call_of(OpType::ALLGATHER_INTO_TENSOR_COALESCED, "lockstep:all_gather_into_tensor_coalesced", options,
                       inputs, outputs),
               [this, pairs = std::move(pairs)](const CallOptions& call) mutable {
                 for (auto& [send, receive] : pairs) {
                   send.prepare();
                   receive.prepare();
                   group_->all_gather(send.data(), receive.data(), send.count(), send.dtype(), call);
                   receive.copy_back();
                 }
               });
}

LockstepBackend::WorkPointer LockstepBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                            const c10d::GatherOptions& options) {
  check_root("gather_single", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  const bool is_root = root == getRank();
  if (is_root) check_flat("gather_single", output, input);
  check_tensor("gather_single", getRank(), input);
  return issue(
      call_of(OpType::GATHER, "lockstep:gather_single", options, {input}, is_root ? Tensors{output} : Tensors{}),
      [this, root, send = moved(input, Access::kRead),
       receive = is_root ? moved(output, Access::kWrite) : Operand()](const CallOptions& call) mutable {
        send.prepare();
        receive.prepare();
        group_->gather(send.data(), receive.data(), send.count(), send.dtype(), root, call);
        receive.copy_back();
      });
}

LockstepBackend::WorkPointer LockstepBackend::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                                    const c10d::ReduceScatterOptions& options) {
  check_flat("reduce_scatter_tensor", input, output);
  const Reduction reduction("reduce_scatter_tensor", getRank(), options.reduceOp, input.scalar_type());
  return issue(call_of(OpType::_REDUCE_SCATTER_BASE, "lockstep:_reduce_scatter_base", options, {input}, {output}),
               [this, reduction, send = reduction.operand(input, Access::kRead),
                receive = reduction.operand(output, Access::kWrite)](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 group_->reduce_scatter(send.data(), receive.data(), receive.count(), receive.dtype(), reduction.op(),
                                        with_factor(call, reduction));
                 receive.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::reduce_scatter_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr auto kCall = "reduce_scatter_tensor_coalesced";
  if (outputs.size() != inputs.size() || inputs.empty())
    refuse(kCall, getRank(),
           "got " + std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) +
               " outputs; the counts must match");
  struct Pair {
    Reduction reduction;
    Operand send, receive;
  };
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_flat(kCall, inputs[i], outputs[i]);
    const Reduction reduction(kCall, getRank(), options.reduceOp, inputs[i].scalar_type());
    pairs.push_back(
        {reduction, reduction.operand(inputs[i], Access::kRead), reduction.operand(outputs[i], Access::kWrite)});
  }
  return issue(call_of(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "lockstep:reduce_scatter_tensor_coalesced", options,
                       inputs, outputs),
               [this, pairs = std::move(pairs)](const CallOptions& call) mutable {
                 for (auto& [reduction, send, receive] : pairs) {
                   send.prepare();
                   receive.prepare();
                   group_->reduce_scatter(send.data(), receive.data(), receive.count(), receive.dtype(), reduction.op(),
                                          with_factor(call, reduction));
                   receive.copy_back();
                 }
               });
}

}  // namespace lockstep::torch_backend
