// The launcher's two outputs, to which all ranks' lines are written. One of them may show a status line that is redrawn
// below all others.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "src/core/process/fd.h"
#include "src/launch/output/line_cutter.h"

namespace lockstep::launch {

// Text that waits to be written to one file descriptor. It is written in small pieces after poll() has reported room,
// and no write blocks, so that a reader that has stopped (a pager, ^S) never keeps the launcher from watching its
// ranks. A piece ends with a line if possible, so that another writer to the same file or pipe does not split it.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  void append(std::string_view text);
  bool empty() const { return waiting() == 0; }
  bool full() const { return waiting() >= kLimit; }  // then the caller reads no more for it
  std::size_t waiting() const { return text_.size() - begin_; }
  int fd() const { return own_ ? own_.get() : fd_; }  // to poll
  int error() const { return error_; }                // errno of a failed write; all later text is dropped
  void write_some();                                  // call it once after poll() has reported room

 private:
  static constexpr std::size_t kLimit = 1 << 20;

  enum class Way { kWrite, kSend, kByteByByte };
  ssize_t write(std::string_view piece) const;

  int fd_;
  Fd own_;  // the same terminal or pipe, opened again; invalid if that is not possible
  std::size_t piece_;
  Way way_ = Way::kWrite;
  std::string text_;
  std::size_t begin_ = 0;
  int error_ = 0;
};

// Whether both descriptors refer to the same file, pipe or terminal.
bool is_one_file(int first, int second);

class Screen {
 public:
  // `one_file`: stderr goes to the same place as stdout (a terminal, a log), and through its queue, since two writers
  // would split each other's lines.
  Screen(int output_fd, int errors_fd, bool one_file) : output_(output_fd), errors_(errors_fd), one_file_(one_file) {}

  void show(const Piece& piece, bool is_error);
  OutputQueue& queue(bool is_error) { return is_error && !one_file_ ? errors_ : output_; }
  const OutputQueue& queue(bool is_error) const { return is_error && !one_file_ ? errors_ : output_; }
  OutputQueue& output() { return output_; }
  const OutputQueue& output() const { return output_; }
  OutputQueue& errors() { return errors_; }
  const OutputQueue& errors() const { return errors_; }

 private:
  OutputQueue output_, errors_;
  bool one_file_;
  std::string status_;
};

}  // namespace lockstep::launch
