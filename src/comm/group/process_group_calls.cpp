// The calls of a process group: each describes its data and hands it to the group's implementation.
#include <memory>
#include <numeric>
#include <utility>

#include "src/comm/group/process_group_impl.h"

namespace lockstep {

namespace {

// The counts are copied: the caller's may be destroyed before the Work is done.
CallData gathered(const void* send, void* receive, ProcessGroup::Counts counts, DType dtype) {
  auto layout = std::make_shared<Layout>();
  layout->receive_counts.assign(counts.begin(), counts.end());
  const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  return {send, receive, all, dtype, ReduceOp::kSum, -1, std::move(layout)};
}

CallData exchanged(const void* send, ProcessGroup::Counts send_counts, void* receive,
                   ProcessGroup::Counts receive_counts, DType dtype) {
  auto layout = std::make_shared<Layout>();
  layout->send_counts.assign(send_counts.begin(), send_counts.end());
  layout->receive_counts.assign(receive_counts.begin(), receive_counts.end());
  return {send, receive, 0, dtype, ReduceOp::kSum, -1, std::move(layout)};
}

CallData coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op, int root) {
  auto layout = std::make_shared<Layout>();
  layout->regions.assign(buffers.begin(), buffers.end());
  std::size_t all = 0;
  for (const Region& buffer : buffers) all += buffer.count;
  return {nullptr, nullptr, all, dtype, op, root, std::move(layout)};
}

}  // namespace

void ProcessGroup::all_reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllReduce, {send, receive, count, dtype, op}, call);
}

Work ProcessGroup::all_reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllReduce, {send, receive, count, dtype, op}, call);
}

void ProcessGroup::reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                          const CallOptions& call) {
  impl_->run(OperationKind::kReduce, {send, receive, count, dtype, op, root}, call);
}

Work ProcessGroup::reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                                const CallOptions& call) {
  return impl_->start(OperationKind::kReduce, {send, receive, count, dtype, op, root}, call);
}

void ProcessGroup::broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& call) {
  impl_->run(OperationKind::kBroadcast, {data, data, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::broadcast_async(void* data, std::size_t count, DType dtype, int root, const CallOptions& call) {
  return impl_->start(OperationKind::kBroadcast, {data, data, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllGather, {send, receive, count, dtype}, call);
}

Work ProcessGroup::all_gather_async(const void* send, void* receive, std::size_t count, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllGather, {send, receive, count, dtype}, call);
}

void ProcessGroup::gather(const void* send, void* receive, std::size_t count, DType dtype, int root,
                          const CallOptions& call) {
  impl_->run(OperationKind::kGather, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::gather_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                                const CallOptions& call) {
  return impl_->start(OperationKind::kGather, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::scatter(const void* send, void* receive, std::size_t count, DType dtype, int root,
                           const CallOptions& call) {
  impl_->run(OperationKind::kScatter, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::scatter_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                                 const CallOptions& call) {
  return impl_->start(OperationKind::kScatter, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::reduce_scatter(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                  const CallOptions& call) {
  impl_->run(OperationKind::kReduceScatter, {send, receive, count, dtype, op}, call);
}

Work ProcessGroup::reduce_scatter_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                        const CallOptions& call) {
  return impl_->start(OperationKind::kReduceScatter, {send, receive, count, dtype, op}, call);
}

void ProcessGroup::all_to_all(const void* send, void* receive, std::size_t count, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllToAll, {send, receive, count, dtype}, call);
}

Work ProcessGroup::all_to_all_async(const void* send, void* receive, std::size_t count, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllToAll, {send, receive, count, dtype}, call);
}

// Passes may make no call of their own, for example with a hook that leaves the gradients in place; one comparison
// covers all of them.
void ProcessGroup::compare_with_next_call(const PassState& state) {
  PassState& next = impl_->next_pass;
  const bool is_same = next.wrapper == state.wrapper && next.pass == state.pass;
  const std::uint64_t earlier = is_same ? next.earlier : hash_of(next);
  next = state;
  next.earlier = earlier;
}

std::uint32_t ProcessGroup::count_wrapper() { return ++impl_->wrappers; }

void ProcessGroup::barrier(const CallOptions& call) { impl_->run(OperationKind::kBarrier, {}, call); }

Work ProcessGroup::barrier_async(const CallOptions& call) { return impl_->start(OperationKind::kBarrier, {}, call); }

void ProcessGroup::all_gather(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& call) {
  impl_->run(OperationKind::kAllGatherV, gathered(send, receive, counts, dtype), call);
}

Work ProcessGroup::all_gather_async(const void* send, void* receive, Counts counts, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllGatherV, gathered(send, receive, counts, dtype), call);
}

void ProcessGroup::all_to_all(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllToAllV, exchanged(send, send_counts, receive, receive_counts, dtype), call);
}

Work ProcessGroup::all_to_all_async(const void* send, Counts send_counts, void* receive, Counts receive_counts,
                                    DType dtype, const CallOptions& call) {
  return impl_->start(OperationKind::kAllToAllV, exchanged(send, send_counts, receive, receive_counts, dtype), call);
}

void ProcessGroup::all_reduce_coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op,
                                        const CallOptions& call) {
  impl_->run(OperationKind::kAllReduce, coalesced(buffers, dtype, op, -1), call);
}

Work ProcessGroup::all_reduce_coalesced_async(std::span<const Region> buffers, DType dtype, ReduceOp op,
                                              const CallOptions& call) {
  return impl_->start(OperationKind::kAllReduce, coalesced(buffers, dtype, op, -1), call);
}

void ProcessGroup::broadcast_coalesced(std::span<const Region> buffers, DType dtype, int root,
                                       const CallOptions& call) {
  impl_->run(OperationKind::kBroadcast, coalesced(buffers, dtype, ReduceOp::kSum, root), call);
}

Work ProcessGroup::broadcast_coalesced_async(std::span<const Region> buffers, DType dtype, int root,
                                             const CallOptions& call) {
  return impl_->start(OperationKind::kBroadcast, coalesced(buffers, dtype, ReduceOp::kSum, root), call);
}

void ProcessGroup::send(const void* data, std::size_t count, DType dtype, int to, int tag, const CallOptions& call) {
  send_async(data, count, dtype, to, tag, call).wait();
}

Work ProcessGroup::send_async(const void* data, std::size_t count, DType dtype, int to, int tag,
                              const CallOptions& call) {
  return impl_->send({const_cast<void*>(data), count, dtype, to, tag}, call);
}

int ProcessGroup::recv(void* data, std::size_t count, DType dtype, int from, int tag, const CallOptions& call) {
  int sender = from;
  recv_async(data, count, dtype, from, tag, &sender, call).wait();
  return sender;
}

Work ProcessGroup::recv_async(void* data, std::size_t count, DType dtype, int from, int tag, int* sender,
                              const CallOptions& call) {
  return impl_->receive({data, count, dtype, from, tag, sender}, call);
}

}  // namespace lockstep
