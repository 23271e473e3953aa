// Pieces of memory that pass through one stream, one after the other: what is left of them, and what passed.
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
  // Pieces added from here on are not due.
  void mark() { due_ = left_; }
  bool is_due() const { return due_ != 0; }
  bool idle() const { return left_ == 0; }
  std::size_t left() const { return left_; }  // bytes
  bool at_header() const { return !idle() && pieces_[next_].kind == Kind::kHeader; }

  // The next pieces as far as `room` holds them; its used part.
  std::span<iovec> gather(std::span<iovec> room) const;

  struct Passed {
    std::size_t payload = 0;
    bool header_ended = false;
  };
  Passed advance(std::size_t bytes);
  // Fills pieces with bytes that came elsewhere, up to the end of a header. Returns how many it took.
  std::size_t fill(std::span<const std::byte> from, Passed& passed);

 private:
  struct Piece {
    std::byte* data;
    std::size_t bytes;
    Kind kind;
  };
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;  // piece under way
  std::size_t done_ = 0;  // bytes of it
  std::size_t left_ = 0, due_ = 0;
};

}  // namespace lockstep::host
