// A queue of pieces of memory that pass through one stream in order. It tracks the remaining and the transferred bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::host {

class PieceQueue {
 public:
  enum class Kind : std::uint8_t { kHeader, kPayload, kPadding };

  void add(std::byte* data, std::size_t bytes, Kind kind);
  void forget_done();
  // Pieces that are added after this call are not due yet.
  void mark() { due_ = left_; }
  bool is_due() const { return due_ != 0; }
  bool idle() const { return left_ == 0; }
  std::size_t left() const { return left_; }  // bytes
  bool at_header() const { return !idle() && pieces_[next_].kind == Kind::kHeader; }

  // Returns the next pieces, as many as fit in `room`; the result is the used part of `room`.
  std::span<iovec> gather(std::span<iovec> room) const;

  struct Passed {
    std::size_t payload = 0;
    bool header_ended = false;
  };
  Passed advance(std::size_t bytes);
  // Fills pieces with bytes that arrived in another buffer, up to the end of a header. Returns the number of bytes
  // used.
  std::size_t fill(std::span<const std::byte> from, Passed& passed);

 private:
  struct Piece {
    std::byte* data;
    std::size_t bytes;
    Kind kind;
  };
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;  // the piece under way
  std::size_t done_ = 0;  // its bytes that are done
  std::size_t left_ = 0, due_ = 0;
};

}  // namespace lockstep::host
