// Carries what the ranks of this node write to the launcher's own outputs: whole lines, the rank in front, equal lines
// folded.
//
// Nothing that a rank has written is lost: its streams are read to their end, however slow the reader of the launcher's
// output is. Only a process that outlives its rank and keeps a stream open ends that: then what it has written by then
// still comes out, and a line says so; and give_up().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/output/line_cutter.h"
#include "src/launch/output/line_folder.h"
#include "src/launch/output/screen.h"
#include "src/launch/supervise/process.h"

struct pollfd;

namespace lockstep::launch {

struct RelayOptions {
  bool prefix = true;
  bool fold = true;     // equal lines of several ranks into one
  bool redraw = false;  // stdout is a terminal: rank 0's '\r' lines are redrawn
};

class OutputRelay {
 public:
  // Takes the streams of the processes. Ranks are known by their place in `processes` from then on.
  OutputRelay(const RelayOptions& options, std::vector<RankProcess>& processes);

  void add_descriptors(std::vector<pollfd>& polled) const;
  // Reads and writes what can be, after poll().
  void move(const std::vector<pollfd>& polled);
  // When to call move() although nothing has come.
  std::optional<Clock::time_point> due() const { return folder_.due(); }

  // A line of the launcher's own, on stderr, below all that the ranks have written so far.
  void say(const std::string& text);
  void expect_last_words() { folder_.expect_last_words(); }
  // The last lines that come, without another moment's wait.
  void finish();
  // Nobody waits for the reader any longer: what has not been written is lost, and a line says so where stderr takes it
  // at once.
  void give_up();

  bool is_open(std::size_t rank) const { return ranks_[rank].output.fd || ranks_[rank].errors.fd; }
  // Its streams are not read, because nobody reads ours.
  bool is_held_back(std::size_t rank) const;
  // Closes the streams of a rank that is gone, once what is in them has been read.
  void close_when_read(std::size_t rank);
  std::vector<std::string> last_errors(std::size_t rank) const { return ranks_[rank].last_errors.lines(); }

  bool is_empty() const { return screen_.output().empty() && screen_.errors().empty(); }
  // Of a failed write to stdout or stderr: an errno, or 0.
  int error() const { return screen_.output().error() != 0 ? screen_.output().error() : screen_.errors().error(); }

 private:
  struct Stream {
    Fd fd;
    LineCutter cutter;
    bool is_error;
    std::optional<std::size_t> left;  // bytes to read before it is closed
  };
  struct Rank {
    int number;
    std::string task;  // "ps:0"; empty: it is known by its number alone
    Stream output, errors;
    LastLines last_errors;
  };

  Rank make_rank(RankProcess& process) const;
  bool is_read(const Stream& stream) const { return stream.fd && !screen_.queue(stream.is_error).full(); }
  bool read_some(Rank& rank, Stream& stream, std::size_t bytes);
  std::size_t read(Rank& rank, Stream& stream, std::size_t most);
  void close(Rank& rank, Stream& stream, const std::string& holder = "");
  void show(const Rank& rank, bool is_error, std::vector<Piece> pieces);
  void show(const std::vector<LineFolder::Line>& lines);
  std::string prefix_of(const std::vector<int>& numbers) const;

  RelayOptions options_;
  Screen screen_;
  LineFolder folder_;
  std::vector<Rank> ranks_;
};

}  // namespace lockstep::launch
