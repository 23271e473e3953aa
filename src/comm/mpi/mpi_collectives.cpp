#include "src/comm/mpi/mpi_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/core/error.h"
#include "src/comm/mpi/library/mpi_runtime.h"
#include "src/comm/mpi/mpi_types.h"
#include "src/comm/operation/composite.h"
#include "src/comm/operation/mismatch.h"
#include "src/comm/operation/parts.h"

namespace lockstep::mpi {

namespace {

using Statement = Collectives::Statement;

Statement statement_of(const Operation& operation) {
  Statement statement{operation.signature, operation.pass, {}};
  const char* name = operation.purpose.name != nullptr ? operation.purpose.name : "";
  std::memcpy(statement.purpose, name, std::min(std::strlen(name), sizeof(statement.purpose) - 1));
  return statement;
}

std::uint64_t hash_of_bytes(const Signature& signature) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto* bytes = reinterpret_cast<const unsigned char*>(&signature);
  for (std::size_t i = 0; i < sizeof signature; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

Collectives::IntParts& Collectives::IntParts::operator=(const std::vector<std::size_t>& lengths) {
  counts.clear();
  offsets.clear();
  int at = 0;
  for (const std::size_t length : lengths) {
    counts.push_back(static_cast<int>(length));
    offsets.push_back(at);
    at += static_cast<int>(length);
  }
  return *this;
}

Collectives::Collectives(const Place& place, MPI_Comm communicator, std::size_t most, std::function<void()> trouble)
    : place_(place), communicator_(communicator), most_(most), trouble_(std::move(trouble)) {}

void Collectives::finish(const Operation& operation, const char* call, const std::function<int(MPI_Request*)>& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const auto held = lock();
    throw_if_given_up();
    check(start(&request), call);
  }
  if (wait(request, deadline_, trouble_)) return;
  throw TimeoutError("{}: rank {} waited {:.1f} s for its peers in {}; MPI does not say which did not arrive",
                     describe(operation.signature, operation.purpose), place_.rank,
                     std::chrono::duration<double>(operation.timeout).count(), call);
}

void Collectives::execute(const Operation& operation) {
  deadline_ = std::chrono::steady_clock::now() + operation.timeout;
  compare(operation);
  const OperationKind kind = operation.signature.kind;
  if (kind == OperationKind::kBarrier || kind == OperationKind::kAllocate) return;  // the comparison was the barrier
  if (is_reduction(kind)) return reduce(operation);
  if (kind == OperationKind::kBroadcast) return broadcast(operation);
  if (kind == OperationKind::kAllGatherV) return all_gather_v(operation);
  if (kind == OperationKind::kAllToAllV) return all_to_all_v(operation);
  move(operation);
}

// The largest hash and the largest complement equal this rank's own on all ranks, or on none.
void Collectives::compare(const Operation& operation) {
  const std::uint64_t hash = hash_of_bytes(operation.signature);
  words_.assign({hash, ~hash});
  all_words_.resize(2);
  finish(operation, "MPI_Iallreduce", [&](MPI_Request* request) {
    return api().MPI_Iallreduce(words_.data(), all_words_.data(), 2, MPI_UINT64_T, MPI_MAX, communicator_, request);
  });
  if (all_words_[0] != hash || all_words_[1] != ~hash) explain_mismatch(operation);
}

void Collectives::explain_mismatch(const Operation& operation) {
  statement_ = statement_of(operation);
  statements_.resize(static_cast<std::size_t>(ranks()));
  finish(operation, "MPI_Iallgather", [&](MPI_Request* request) {
    return api().MPI_Iallgather(&statement_, sizeof statement_, MPI_BYTE, statements_.data(), sizeof statement_,
                                MPI_BYTE, communicator_, request);
  });
  const auto& all = statements_;
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const Statement& each) { return each.signature != all[0].signature; });
  const auto said_by = [&](const Statement& said) {
    const Purpose purpose{said.purpose[0] != '\0' ? said.purpose : nullptr, said.signature.purpose_index};
    return CallOfRank{static_cast<int>(&said - all.data()), said.signature, purpose, said.pass};
  };
  throw MismatchError("{}: {}", describe(operation.signature, operation.purpose),
                      describe_mismatch(said_by(all[0]), said_by(other == all.end() ? all[0] : *other)));
}

void Collectives::must_fit(const Operation& operation, std::size_t elements) const {
  if (elements > most_)
    throw InvalidArgument("{}: backend mpi moves at most {} elements in such a call; cut it into several",
                          describe(operation.signature, operation.purpose), most_);
}

void Collectives::broadcast(const Operation& operation) {
  const Signature& call = operation.signature;
  auto* const data = static_cast<std::byte*>(operation.receive);
  if (is_root(operation) && operation.send != data && call.count != 0)
    std::memcpy(data, operation.send, operation.bytes());
  for (std::size_t at = 0; at < call.count; at += most_)
    finish(operation, "MPI_Ibcast", [&](MPI_Request* request) {
      return api().MPI_Ibcast(data + at * size_of(call.dtype), static_cast<int>(std::min(most_, call.count - at)),
                              moved_type(call.dtype), call.root, communicator_, request);
    });
}

void Collectives::reduce(const Operation& operation) {
  const Signature& call = operation.signature;
  if (call.kind == OperationKind::kReduceScatter) {
    must_fit(operation, call.count * static_cast<std::size_t>(ranks()));
    return reduce_piece(operation, bytes_of(operation.send), static_cast<std::byte*>(operation.receive), call.count);
  }
  const bool has_result = call.kind == OperationKind::kAllReduce || is_root(operation);
  for (std::size_t at = 0; at < call.count; at += most_) {
    auto* const receive = has_result ? static_cast<std::byte*>(operation.receive) + at * size_of(call.dtype) : nullptr;
    reduce_piece(operation, bytes_of(operation.send) + at * size_of(call.dtype), receive,
                 std::min(most_, call.count - at));
  }
}

// `count` elements of result; null: the result is for another rank.
void Collectives::reduce_piece(const Operation& operation, const std::byte* send, std::byte* receive,
                               std::size_t count) {
  const Signature& call = operation.signature;
  const std::size_t sent =
      call.kind == OperationKind::kReduceScatter ? count * static_cast<std::size_t>(ranks()) : count;
  const double factor = call.op == ReduceOp::kAvg ? 1.0 / ranks() : 1.0;
  if (reduced_type(call.dtype) == call.dtype) {
    call_reduce(operation, send, receive, count, moved_type(call.dtype));
    if (call.op == ReduceOp::kAvg && receive != nullptr) scale(call.dtype, receive, receive, count, factor);
    return;
  }
  wide_send_.resize(std::max(wide_send_.size(), sent));
  wide_receive_.resize(std::max(wide_receive_.size(), count));
  widen(call.dtype, send, wide_send_.data(), sent);
  call_reduce(operation, wide_send_.data(), wide_receive_.data(), count, MPI_FLOAT);
  if (receive != nullptr) narrow(call.dtype, wide_receive_.data(), receive, count, static_cast<float>(factor));
}

void Collectives::call_reduce(const Operation& operation, const void* send, void* receive, std::size_t count,
                              MPI_Datatype type) {
  const Signature& call = operation.signature;
  const int n = static_cast<int>(count);
  const MPI_Op op = [&] {
    const auto held = lock();
    return op_of(call.op, reduced_type(call.dtype));
  }();
  const bool in_place = send == receive;
  if (call.kind == OperationKind::kAllReduce)
    return finish(operation, "MPI_Iallreduce", [&](MPI_Request* request) {
      return api().MPI_Iallreduce(in_place ? MPI_IN_PLACE : send, receive, n, type, op, communicator_, request);
    });
  if (call.kind == OperationKind::kReduce)
    return finish(operation, "MPI_Ireduce", [&](MPI_Request* request) {
      return api().MPI_Ireduce(in_place && is_root(operation) ? MPI_IN_PLACE : send, receive, n, type, op, call.root,
                               communicator_, request);
    });
  // In place, Lockstep's result is part `rank` of the input and MPI's is the first part: use a separate buffer.
  const auto* from = bytes_of(send);
  auto* const to = static_cast<std::byte*>(receive);
  const std::size_t element = type == MPI_FLOAT ? sizeof(float) : size_of(call.dtype);
  const bool overlaps = to >= from && to < from + count * static_cast<std::size_t>(ranks()) * element;
  if (overlaps) scratch_.resize(std::max(scratch_.size(), count * element));
  finish(operation, "MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
    return api().MPI_Ireduce_scatter_block(send, overlaps ? scratch_.data() : receive, n, type, op, communicator_,
                                           request);
  });
  if (overlaps && count != 0) std::memcpy(receive, scratch_.data(), count * element);
}

// The operations with equal parts. A rank's part that is already in the larger buffer is passed to MPI as in place.
void Collectives::move(const Operation& operation) {
  const Signature& call = operation.signature;
  must_fit(operation, call.count * static_cast<std::size_t>(ranks()));
  if (call.count == 0) return;
  const int n = static_cast<int>(call.count);
  const MPI_Datatype type = moved_type(call.dtype);
  const std::size_t own = static_cast<std::size_t>(place_.rank) * operation.bytes();
  const void* send = operation.send;
  void* const receive = operation.receive;
  switch (call.kind) {
    case OperationKind::kAllGather:
      if (send == bytes_of(receive) + own) send = MPI_IN_PLACE;
      return finish(operation, "MPI_Iallgather", [&](MPI_Request* request) {
        return api().MPI_Iallgather(send, n, type, receive, n, type, communicator_, request);
      });
    case OperationKind::kGather:
      if (is_root(operation) && send == bytes_of(receive) + own) send = MPI_IN_PLACE;
      return finish(operation, "MPI_Igather", [&](MPI_Request* request) {
        return api().MPI_Igather(send, n, type, receive, n, type, call.root, communicator_, request);
      });
    case OperationKind::kScatter: {
      void* const to = is_root(operation) && receive == bytes_of(send) + own ? MPI_IN_PLACE : receive;
      return finish(operation, "MPI_Iscatter", [&](MPI_Request* request) {
        return api().MPI_Iscatter(send, n, type, to, n, type, call.root, communicator_, request);
      });
    }
    case OperationKind::kAllToAll: {
      const std::size_t all = operation.bytes() * static_cast<std::size_t>(ranks());
      if (send == receive) {
        scratch_.assign(bytes_of(send), bytes_of(send) + all);
        send = scratch_.data();
      }
      return finish(operation, "MPI_Ialltoall", [&](MPI_Request* request) {
        return api().MPI_Ialltoall(send, n, type, receive, n, type, communicator_, request);
      });
    }
    default: LOCKSTEP_CHECK(false, "mpi: cannot execute {}", name_of(call.kind));
  }
}

void Collectives::all_gather_v(const Operation& operation) {
  const Signature& call = operation.signature;
  const auto& lengths = operation.layout->receive_counts;
  must_fit(operation, call.count);
  in_ = lengths;
  const auto me = static_cast<std::size_t>(place_.rank);
  const std::byte* own = bytes_of(operation.receive) + static_cast<std::size_t>(in_.offsets[me]) * size_of(call.dtype);
  const void* send = operation.send == own ? MPI_IN_PLACE : operation.send;
  finish(operation, "MPI_Iallgatherv", [&](MPI_Request* request) {
    return api().MPI_Iallgatherv(send, in_.counts[me], moved_type(call.dtype), operation.receive, in_.counts.data(),
                                 in_.offsets.data(), moved_type(call.dtype), communicator_, request);
  });
}

// All ranks read all counts, and so find the same mismatches: every rank throws the same error.
void Collectives::all_to_all_v(const Operation& operation) {
  const auto n = static_cast<std::size_t>(ranks());
  const Layout& layout = *operation.layout;
  words_.assign(layout.send_counts.begin(), layout.send_counts.end());
  words_.insert(words_.end(), layout.receive_counts.begin(), layout.receive_counts.end());
  all_words_.resize(std::max(all_words_.size(), 2 * n * n));
  finish(operation, "MPI_Iallgather", [&](MPI_Request* request) {
    return api().MPI_Iallgather(words_.data(), static_cast<int>(2 * n), MPI_UINT64_T, all_words_.data(),
                                static_cast<int>(2 * n), MPI_UINT64_T, communicator_, request);
  });
  AlltoallvCounts counts(n);
  std::copy_n(all_words_.begin(), 2 * n * n, counts.row(0));
  if (const std::string disagreement = counts.disagreement(); !disagreement.empty())
    throw MismatchError("{}: {}", describe(operation.signature, operation.purpose), disagreement);
  for (std::size_t rank = 0; rank < n; ++rank)
    must_fit(operation, std::max(counts.before(rank, n),
                                 std::accumulate(counts.row(rank) + n, counts.row(rank) + 2 * n, std::uint64_t{0})));
  out_ = layout.send_counts;
  in_ = layout.receive_counts;
  const MPI_Datatype type = moved_type(operation.signature.dtype);
  finish(operation, "MPI_Ialltoallv", [&](MPI_Request* request) {
    return api().MPI_Ialltoallv(operation.send, out_.counts.data(), out_.offsets.data(), type, operation.receive,
                                in_.counts.data(), in_.offsets.data(), type, communicator_, request);
  });
}

}  // namespace lockstep::mpi
