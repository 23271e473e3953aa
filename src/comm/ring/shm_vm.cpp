// Large messages in memory that is not registered, by the kernel's copies from one process to another: the owner of a slice
// reads the peers' values piece by piece, sums them, and writes the results where they belong; who lacks data reads it.
// n-1 copies in, and for all_reduce n-1 out, of every element. See shm_transport.h.
#include <algorithm>

#include "src/comm/ring/shm_transport.h"

namespace lockstep::ring {

namespace {

constexpr std::size_t kPullBytes = 1024 * 1024;  // of one system call that only moves data

}  // namespace

void ShmTransport::all_reduce_by_vm(const Operation& operation) {
  const Signature& call = operation.signature;
  const Slice slice = slice_of(call.count, call.dtype, place_.rank, ranks());
  const std::size_t offset = slice.begin * size_of(call.dtype);
  auto* const own = static_cast<std::byte*>(operation.receive) + offset;
  reduce_by_vm(call, {own, own, offset, slice.count(), VmShare::kAll});
}

void ShmTransport::reduce_by_vm(const Signature& call, const VmShare& share) {
  const std::size_t element = size_of(call.dtype), per_piece = tuning_.vm_piece_bytes / element;
  vm_pieces_.resize(in_.size() * tuning_.vm_piece_bytes);  // the same size every time
  const auto piece_of = [&](int rank) { return vm_pieces_.data() + static_cast<std::size_t>(rank) * tuning_.vm_piece_bytes; };
  {
    PeerCopies::Reaching reaching(copies_);
    for (std::size_t begin = 0; begin < share.count; begin += per_piece) {
      const std::size_t count = std::min(per_piece, share.count - begin), bytes = count * element, at = share.offset + begin * element;
      for (int rank = 0; rank < ranks(); ++rank) {
        in_[static_cast<std::size_t>(rank)] = rank == place_.rank ? share.own + begin * element : piece_of(rank);
        if (rank != place_.rank) reaching.read(rank, piece_of(rank), at, bytes);
      }
      out_[0] = share.result != nullptr ? share.result + begin * element : piece_of(place_.rank);
      reduce(call, 1, count);
      for (int rank = 0; rank < ranks(); ++rank)
        if (rank != place_.rank && (share.to == VmShare::kAll || share.to == rank)) reaching.write(rank, at, out_[0], bytes);
      count_read(bytes * (in_.size() - 1));
    }
  }
  rounds_.barrier();
}

void ShmTransport::pull_by_vm() {
  {
    PeerCopies::Reaching reaching(copies_);
    for (const Pull& pull : pulls_) {
      for (std::size_t begin = 0; begin < pull.bytes; begin += kPullBytes)
        reaching.read(pull.peer, pull.to + begin, pull.offset + begin, std::min(kPullBytes, pull.bytes - begin));
      count_read(pull.bytes);
    }
  }
  rounds_.barrier();
}

}  // namespace lockstep::ring
