#include "src/comm/host/wire/piece_queue.h"

#include <algorithm>
#include <cstring>

namespace lockstep::host {

void PieceQueue::add(std::byte* data, std::size_t bytes, Kind kind) {
  if (bytes == 0) return;
  pieces_.push_back({data, bytes, kind});
  left_ += bytes;
}

void PieceQueue::forget_done() {
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(next_));
  next_ = 0;
}

std::span<iovec> PieceQueue::gather(std::span<iovec> room) const {
  std::size_t used = 0, skip = done_;
  for (std::size_t at = next_; at < pieces_.size() && used < room.size(); ++at, skip = 0)
    room[used++] = {pieces_[at].data + skip, pieces_[at].bytes - skip};
  return room.first(used);
}

PieceQueue::Passed PieceQueue::advance(std::size_t bytes) {
  Passed passed;
  while (bytes > 0) {
    const Piece& piece = pieces_[next_];
    const std::size_t part = std::min(bytes, piece.bytes - done_);
    if (piece.kind == Kind::kPayload) passed.payload += part;
    bytes -= part;
    left_ -= part;
    due_ -= std::min(due_, part);
    done_ += part;
    if (done_ < piece.bytes) break;
    passed.header_ended |= piece.kind == Kind::kHeader;
    done_ = 0;
    ++next_;
  }
  return passed;
}

std::size_t PieceQueue::fill(std::span<const std::byte> from, Passed& passed) {
  std::size_t taken = 0;
  passed = {};
  while (taken < from.size() && !passed.header_ended) {
    const Piece& piece = pieces_[next_];
    const std::size_t part = std::min(from.size() - taken, piece.bytes - done_);
    std::memcpy(piece.data + done_, from.data() + taken, part);
    const Passed now = advance(part);
    passed.payload += now.payload;
    passed.header_ended = now.header_ended;
    taken += part;
  }
  return taken;
}

}  // namespace lockstep::host
