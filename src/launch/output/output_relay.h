// Passes the output of this node's ranks to the launcher's own outputs: complete lines, prefixed with the rank, equal
// lines folded.
//
// No output of a rank is lost: its streams are read to their end, however slow the reader of the launcher's output is.
// There are two exceptions: if a process outlives its rank and keeps a stream open, only its output so far is passed
// on, and a line reports that; and give_up().
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
  bool fold = true;     // fold equal lines of several ranks
  bool redraw = false;  // stdout is a terminal: rank 0's '\r' lines are redrawn
};

class OutputRelay {
 public:
  // Takes the streams of the processes. Afterwards ranks are identified by their index in `processes`.
  OutputRelay(const RelayOptions& options, std::vector<RankProcess>& processes);

  void add_descriptors(std::vector<pollfd>& polled) const;
  // Reads and writes what is ready, after poll().
  void move(const std::vector<pollfd>& polled);
  // When to call move() even if no data has arrived.
  std::optional<Clock::time_point> due() const { return folder_.due(); }

  // Writes a line of the launcher itself to stderr, after all output of the ranks so far.
  void say(const std::string& text);
  void expect_last_words() { folder_.expect_last_words(); }
  // Writes the remaining lines without further waiting.
  void finish();
  // Does not wait for the reader any longer: unwritten output is lost, and a line reports it if stderr accepts it at
  // once.
  void give_up();

  bool is_open(std::size_t rank) const { return ranks_[rank].output.fd || ranks_[rank].errors.fd; }
  // Whether its streams are not read because our output is not read.
  bool is_held_back(std::size_t rank) const;
  // Closes the streams of a rank that has ended, once their content has been read.
  void close_when_read(std::size_t rank);
  std::vector<std::string> last_errors(std::size_t rank) const { return ranks_[rank].last_errors.lines(); }

  bool is_empty() const { return screen_.output().empty() && screen_.errors().empty(); }
  // The errno of a failed write to stdout or stderr, or 0.
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
    std::string task;  // "ps:0"; empty: it has only its number
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
