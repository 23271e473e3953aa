#include "src/launch/output/output_relay.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "src/launch/output/rank_stream.h"

namespace lockstep::launch {

namespace {

constexpr std::size_t kMostAtOnce = 1 << 16;
constexpr std::size_t kTurn = 1 << 12;
// The most that a rank's pipe can hold; a terminal does not report how much it holds.
constexpr std::size_t kMostLeft = 1 << 20;

}  // namespace

OutputRelay::OutputRelay(const RelayOptions& options, std::vector<RankProcess>& processes)
    : options_(options),
      screen_(STDOUT_FILENO, STDERR_FILENO, is_one_file(STDOUT_FILENO, STDERR_FILENO)),
      folder_(static_cast<int>(processes.size())) {
  options_.fold = options.fold && options.prefix && processes.size() > 1;
  for (RankProcess& process : processes) ranks_.push_back(make_rank(process));
}

OutputRelay::Rank OutputRelay::make_rank(RankProcess& process) const {
  CutStyle style;
  style.unchanged = !options_.prefix;
  const CutStyle errors_style = style;
  style.redraw = options_.redraw && process.rank == 0;
  return {process.rank,
          process.task,
          {std::move(process.output), LineCutter(style), false, std::nullopt},
          {std::move(process.errors), LineCutter(errors_style), true, std::nullopt},
          LastLines()};
}

void OutputRelay::add_descriptors(std::vector<pollfd>& polled) const {
  for (const OutputQueue* queue : {&screen_.output(), &screen_.errors()})
    if (!queue->empty()) polled.push_back({queue->fd(), POLLOUT, 0});
  for (const Rank& rank : ranks_)
    for (const Stream* stream : {&rank.output, &rank.errors})
      if (is_read(*stream)) polled.push_back({stream->fd.get(), POLLIN, 0});
}

void OutputRelay::move(const std::vector<pollfd>& polled) {
  const auto ready = [&](int fd) {
    return std::any_of(polled.begin(), polled.end(),
                       [fd](const pollfd& entry) { return entry.fd == fd && entry.revents != 0; });
  };
  std::vector<std::pair<Rank*, Stream*>> streams;
  for (Rank& rank : ranks_)
    for (Stream* stream : {&rank.output, &rank.errors})
      if (is_read(*stream) && (stream->left || ready(stream->fd.get()))) streams.emplace_back(&rank, stream);
  // Reads a little of each in turn, so that ranks that write equal lines reach them at the same time, and those fold.
  const std::size_t turn = options_.fold ? kTurn : kMostAtOnce;
  bool has_more = true;
  for (std::size_t bytes = 0; bytes < kMostAtOnce && has_more; bytes += turn) {
    has_more = false;
    for (const auto& [rank, stream] : streams)
      if (is_read(*stream) && read_some(*rank, *stream, turn)) has_more = true;
  }
  show(folder_.take(Clock::now()));
  for (OutputQueue* queue : {&screen_.output(), &screen_.errors()})
    if (!queue->empty() && ready(queue->fd())) queue->write_some();
}

// Returns whether that many bytes were read. A terminal returns at most 4 KiB at once, a pipe 64.
bool OutputRelay::read_some(Rank& rank, Stream& stream, std::size_t bytes) {
  for (std::size_t read_bytes = 0; read_bytes < bytes;) {
    const std::size_t got = is_read(stream) ? read(rank, stream, bytes - read_bytes) : 0;
    if (got == 0) return false;
    read_bytes += got;
  }
  return true;
}

// Returns the number of bytes; 0: none at present, or the stream is closed. Our end does not block. A terminal without
// a writer returns EIO.
std::size_t OutputRelay::read(Rank& rank, Stream& stream, std::size_t most) {
  std::array<char, kMostAtOnce> bytes;
  const ssize_t got =
      ::read(stream.fd.get(), bytes.data(), std::min({bytes.size(), most, stream.left.value_or(bytes.size())}));
  if (got < 0 && (errno == EINTR || (errno == EAGAIN && !stream.left))) return 0;
  const bool is_held = (got < 0 && errno == EAGAIN) || (got > 0 && stream.left == static_cast<std::size_t>(got));
  if (got > 0) {
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    if (stream.is_error) rank.last_errors.feed(text);
    if (stream.left) *stream.left -= text.size();
    show(rank, stream.is_error, stream.cutter.feed(text));
  }
  if (got <= 0 || is_held) close(rank, stream, is_held ? holder_of(stream.fd.get()) : "");
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

// `holder` is the process that keeps the other end open.
void OutputRelay::close(Rank& rank, Stream& stream, const std::string& holder) {
  stream.fd.reset();
  show(rank, stream.is_error, stream.cutter.finish());
  if (!holder.empty())
    say(fmt::format(
        "lockrun: rank {} has ended, and {}, which has left its process group, keeps its {} open: later output of that "
        "process is not passed on\n",
        rank.number, holder, stream.is_error ? "stderr" : "stdout"));
}

bool OutputRelay::is_held_back(std::size_t rank) const {
  const auto waits = [this](const Stream& stream) { return stream.fd && !is_read(stream); };
  return waits(ranks_[rank].output) || waits(ranks_[rank].errors);
}

void OutputRelay::close_when_read(std::size_t rank) {
  for (Stream* stream : {&ranks_[rank].output, &ranks_[rank].errors})
    if (stream->fd && !stream->left) stream->left = kMostLeft;
}

void OutputRelay::show(const Rank& rank, bool is_error, std::vector<Piece> pieces) {
  const Clock::time_point now = Clock::now();
  for (Piece& piece : pieces) {
    if (options_.fold && piece.kind == Piece::Kind::kLine) {
      show(folder_.add(rank.number, is_error, std::move(piece.text), now));
      continue;
    }
    if (options_.fold) show(folder_.take_until(rank.number));
    if (options_.prefix && piece.kind == Piece::Kind::kLine) piece.text.insert(0, prefix_of({rank.number}));
    screen_.show(piece, is_error);
  }
}

void OutputRelay::show(const std::vector<LineFolder::Line>& lines) {
  for (const LineFolder::Line& line : lines)
    screen_.show({Piece::Kind::kLine, prefix_of(line.ranks) + line.text}, line.is_error);
}

// "[0-3] ", "[worker:0-1,ps:0] "
std::string OutputRelay::prefix_of(const std::vector<int>& numbers) const {
  if (ranks_.front().task.empty()) return "[" + ranges_of(numbers) + "] ";
  std::vector<std::pair<std::string, std::vector<int>>> kinds;
  for (const int number : numbers) {
    const std::string& task = ranks_[static_cast<std::size_t>(number - ranks_.front().number)].task;
    const std::size_t colon = task.find(':');
    if (kinds.empty() || kinds.back().first != task.substr(0, colon))
      kinds.emplace_back(task.substr(0, colon), std::vector<int>());
    kinds.back().second.push_back(std::stoi(task.substr(colon + 1)));
  }
  std::string text;
  for (const auto& [kind, members] : kinds)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", kind, ranges_of(members));
  return "[" + text + "] ";
}

void OutputRelay::say(const std::string& text) {
  show(folder_.take_all());
  screen_.show({Piece::Kind::kLine, text}, true);
}

void OutputRelay::finish() { show(folder_.take_all()); }

void OutputRelay::give_up() {
  const std::size_t lost = screen_.output().waiting() + screen_.errors().waiting();
  OutputQueue& errors = screen_.queue(true);
  if (lost == 0 || !errors.empty()) return;
  say(fmt::format("lockrun: ended before all output of the ranks was read: at least {} bytes are lost\n", lost));
  constexpr int kTries = 64;
  pollfd polled{errors.fd(), POLLOUT, 0};
  for (int i = 0; i < kTries && !errors.empty() && ::poll(&polled, 1, 0) > 0; ++i) errors.write_some();
}

}  // namespace lockstep::launch
