// Collectives that take or give a list of tensors, one for each rank.
#include <numeric>
#include <utility>

#include "python/backend/errors.h"
#include "python/backend/lockstep_backend.h"

namespace lockstep::torch_backend {

namespace {

using c10d::OpType;

OperandList moved_list(const std::vector<at::Tensor>& tensors, Access access) {
  return {tensors, access, moved_elements(tensors[0].scalar_type())};
}

// The part of a list that a rank has, at `data`.
std::byte* part_at(void* data, const std::vector<std::size_t>& counts, std::size_t index, DType dtype) {
  const std::size_t before =
      std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(index), std::size_t{0});
  return static_cast<std::byte*>(data) + before * size_of(dtype);
}

}  // namespace

// `parts` has a tensor for each rank; this rank's is like `like`.
void LockstepBackend::check_parts(const char* call, const Tensors& parts, const at::Tensor& like) const {
  if (static_cast<int>(parts.size()) != getSize())
    refuse(call, getRank(),
           "got a list of " + std::to_string(parts.size()) + " tensors; expected one for each of " +
               std::to_string(getSize()) + " ranks");
  check_tensors(call, getRank(), parts);
  check_tensors(call, getRank(), {parts[0], like});
  const at::Tensor& own = parts[static_cast<std::size_t>(getRank())];
  if (own.numel() != like.numel())
    refuse(call, getRank(),
           "got a tensor of " + std::to_string(like.numel()) + " elements, and a list with " +
               std::to_string(own.numel()) + " for this rank; the counts must match");
}

LockstepBackend::WorkPointer LockstepBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  check_single("all_gather", inputs);
  if (outputs.size() != 1) refuse("all_gather", getRank(), "got several lists of outputs; expected one");
  check_parts("all_gather", outputs[0], inputs[0]);
  return issue(call_of(OpType::ALLGATHER, "lockstep:all_gather", options, inputs, outputs[0]),
               [this, send = moved(inputs[0], Access::kRead),
                receive = moved_list(outputs[0], Access::kWrite)](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 if (receive.are_equal())
                   group_->all_gather(send.data(), receive.data(), send.count(), send.dtype(), call);
                 else
                   group_->all_gather(send.data(), receive.data(), receive.counts(), send.dtype(), call);
                 receive.copy_back();
               });
}

// outputs[r][i] receives rank r's inputs[i].
LockstepBackend::WorkPointer LockstepBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  constexpr auto kCall = "all_gather_coalesced";
  if (static_cast<int>(outputs.size()) != getSize())
    refuse(kCall, getRank(),
           "got " + std::to_string(outputs.size()) + " lists of outputs; expected one for each of " +
               std::to_string(getSize()) + " ranks");
  std::vector<std::pair<Operand, OperandList>> pairs;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensors& of_rank : outputs) {
      if (of_rank.size() != inputs.size())
        refuse(kCall, getRank(),
               "got " + std::to_string(inputs.size()) + " inputs and a list of " + std::to_string(of_rank.size()) +
                   " outputs; the counts must match");
      parts.push_back(of_rank[i]);
    }
    check_parts(kCall, parts, inputs[i]);
    pairs.emplace_back(moved(inputs[i], Access::kRead), moved_list(parts, Access::kWrite));
  }
  for (const Tensors& of_rank : outputs) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return issue(call_of(OpType::ALLGATHER_COALESCED, "lockstep:all_gather_coalesced", options, inputs, std::move(all)),
               [this, pairs = std::move(pairs)](const CallOptions& call) mutable {
                 for (auto& [send, receive] : pairs) {
                   send.prepare();
                   receive.prepare();
                   group_->all_gather(send.data(), receive.data(), receive.counts(), send.dtype(), call);
                   receive.copy_back();
                 }
               });
}

LockstepBackend::WorkPointer LockstepBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  check_single("gather", inputs);
  check_root("gather", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  OperandList receive;
  if (root == getRank()) {
    if (outputs.size() != 1) refuse("gather", getRank(), "the root needs one list of outputs");
    check_parts("gather", outputs[0], inputs[0]);
    receive = moved_list(outputs[0], Access::kWrite);
    if (!receive.are_equal()) refuse("gather", getRank(), "the outputs differ in size; they must have one size");
  } else if (!outputs.empty() && !(outputs.size() == 1 && outputs[0].empty())) {
    refuse("gather", getRank(), "got outputs; only the root, rank " + std::to_string(root) + ", has any");
  }
  return issue(call_of(OpType::GATHER, "lockstep:gather", options, inputs, root == getRank() ? outputs[0] : Tensors{}),
               [this, root, send = moved(inputs[0], Access::kRead),
                receive = std::move(receive)](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 group_->gather(send.data(), receive.data(), send.count(), send.dtype(), root, call);
                 receive.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                      const c10d::ScatterOptions& options) {
  check_single("scatter", outputs);
  check_root("scatter", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  OperandList send;
  if (root == getRank()) {
    if (inputs.size() != 1) refuse("scatter", getRank(), "the root needs one list of inputs");
    check_parts("scatter", inputs[0], outputs[0]);
    send = moved_list(inputs[0], Access::kRead);
    if (!send.are_equal()) refuse("scatter", getRank(), "the inputs differ in size; they must have one size");
  } else if (!inputs.empty() && !(inputs.size() == 1 && inputs[0].empty())) {
    refuse("scatter", getRank(), "got inputs; only the root, rank " + std::to_string(root) + ", has any");
  }
  return issue(
      call_of(OpType::SCATTER, "lockstep:scatter", options, root == getRank() ? inputs[0] : Tensors{}, outputs),
      [this, root, send = std::move(send),
       receive = moved(outputs[0], Access::kWrite)](const CallOptions& call) mutable {
        send.prepare();
        receive.prepare();
        group_->scatter(send.data(), receive.data(), receive.count(), receive.dtype(), root, call);
        receive.copy_back();
      });
}

LockstepBackend::WorkPointer LockstepBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  check_single("reduce_scatter", outputs);
  if (inputs.size() != 1) refuse("reduce_scatter", getRank(), "got several lists of inputs; expected one");
  check_parts("reduce_scatter", inputs[0], outputs[0]);
  const Reduction reduction("reduce_scatter", getRank(), options.reduceOp, outputs[0].scalar_type());
  return issue(call_of(OpType::REDUCE_SCATTER, "lockstep:reduce_scatter", options, inputs[0], outputs),
               [this, reduction, send = OperandList(inputs[0], Access::kRead, reduction.elements()),
                receive = reduction.operand(outputs[0], Access::kWrite)](CallOptions call) mutable {
                 send.prepare();
                 receive.prepare();
                 call.factor = reduction.factor();
                 const DType dtype = receive.dtype();
                 if (send.are_equal()) {
                   group_->reduce_scatter(send.data(), receive.data(), receive.count(), dtype, reduction.op(), call);
                 } else {  // parts of different lengths: each is reduced to its rank
                   for (int r = 0; r < getSize(); ++r) {
                     const auto part = static_cast<std::size_t>(r);
                     group_->reduce(part_at(send.data(), send.counts(), part, dtype),
                                    r == getRank() ? receive.data() : nullptr, send.counts()[part], dtype,
                                    reduction.op(), r, call);
                   }
                 }
                 receive.copy_back();
               });
}

// Elements for or from each rank, of a tensor that is divided along its first dimension: evenly without `splits`.
std::vector<std::size_t> LockstepBackend::counts_of(const char* call, const at::Tensor& tensor,
                                                    const std::vector<std::int64_t>& splits, std::size_t items) const {
  const auto ranks = static_cast<std::size_t>(getSize());
  const std::int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  if (splits.empty()) {
    if (rows % getSize() != 0)
      refuse(call, getRank(),
             "a tensor with " + std::to_string(rows) + " rows cannot be divided among " + std::to_string(getSize()) +
                 " ranks; pass split sizes");
    return std::vector<std::size_t>(ranks, static_cast<std::size_t>(tensor.numel()) * items / ranks);
  }
  if (splits.size() != ranks || std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) != rows)
    refuse(call, getRank(),
           "the split sizes must be one for each of " + std::to_string(ranks) + " ranks, with the sum " +
               std::to_string(rows) + ", the rows of the tensor");
  std::vector<std::size_t> counts;
  for (const std::int64_t split : splits) {
    if (split < 0) refuse(call, getRank(), "got the negative split size " + std::to_string(split));
    counts.push_back(static_cast<std::size_t>(rows == 0 ? 0 : tensor.numel() / rows * split) * items);
  }
  return counts;
}

LockstepBackend::WorkPointer LockstepBackend::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                                std::vector<std::int64_t>& output_splits,
                                                                std::vector<std::int64_t>& input_splits,
                                                                const c10d::AllToAllOptions& options) {
  constexpr auto kCall = "all_to_all_single";
  check_tensors(kCall, getRank(), {output, input});
  const std::size_t items = moved_elements(input.scalar_type()).items;
  const bool is_even = output_splits.empty() && input_splits.empty();
  if (is_even && output.numel() != input.numel())
    refuse(kCall, getRank(),
           "got an input of " + std::to_string(input.numel()) + " elements and an output of " +
               std::to_string(output.numel()) + "; without split sizes they must be equal");
  return issue(call_of(OpType::ALLTOALL_BASE, "lockstep:all_to_all", options, {input}, {output}),
               [this, send_counts = counts_of(kCall, input, input_splits, items),
                receive_counts = counts_of(kCall, output, output_splits, items), send = moved(input, Access::kRead),
                receive = moved(output, Access::kWrite)](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 // With counts on all ranks, since another rank may have been given split sizes.
                 group_->all_to_all(send.data(), send_counts, receive.data(), receive_counts, send.dtype(), call);
                 receive.copy_back();
               });
}

LockstepBackend::WorkPointer LockstepBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  check_parts("all_to_all", outputs,
              outputs.empty() ? at::Tensor() : outputs[static_cast<std::size_t>(getRank()) % outputs.size()]);
  check_parts("all_to_all", inputs, outputs[static_cast<std::size_t>(getRank())]);
  return issue(call_of(OpType::ALLTOALL, "lockstep:all_to_all", options, inputs, outputs),
               [this, send = moved_list(inputs, Access::kRead), receive = moved_list(outputs, Access::kWrite),
                dtype = moved_elements(inputs[0].scalar_type()).dtype](const CallOptions& call) mutable {
                 send.prepare();
                 receive.prepare();
                 group_->all_to_all(send.data(), send.counts(), receive.data(), receive.counts(), dtype, call);
                 receive.copy_back();
               });
}

}  // namespace lockstep::torch_backend
