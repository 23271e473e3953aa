#include "bench/lib/tune.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <vector>

#include "bench/lib/bench_common.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host/shm/tuning.h"

namespace lockstep::bench {

namespace {

using host::Tuning;

constexpr int kTurns = 15, kFewestTurns = 5;
constexpr double kSecondsASize = 0.5;  // of calls; then the minimum of turns is enough
constexpr double kClearly = 0.95;      // another path must take less than this share of the time
constexpr std::size_t kLargest = 16 << 20;

// A group that uses the given table.
class Candidate {
 public:
  Candidate(std::string name, const Tuning& tuning) : name_(std::move(name)) {
    char path[] = "/tmp/lockstep-tune-XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0) throw FileError("--tune: cannot make a file in /tmp");
    ::close(fd);
    std::ofstream(path) << host::to_json({tuning, {}});
    ::setenv(env::kTuning, path, 1);
    group_ = init_process_group();
    ::unsetenv(env::kTuning);
    ::unlink(path);
    if (group_->backend().name() != "host" || group_->backend().transport() != "shm")
      throw InvalidArgument("--tune is for backend host over shared memory, not for {} over {}",
                            group_->backend().name(), group_->backend().transport());
    registered_ = group_->allocate(host::kSlotBytes);
  }

  const std::string& name() const { return name_; }
  ProcessGroup& group() const { return *group_; }
  std::byte* registered() const { return registered_.data(); }

 private:
  std::string name_;
  std::shared_ptr<ProcessGroup> group_;
  Buffer registered_;
};

using Candidates = std::vector<std::unique_ptr<Candidate>>;

// Times of the slowest rank, which are the same on all ranks.
struct Sample {
  double seconds;  // per call
  double spent;    // total of the sample
};

// Sums of zeros stay zero, however often they are computed.
Sample time_calls(ProcessGroup& group, std::byte* data, std::size_t bytes) {
  const auto calls = std::clamp<std::size_t>((std::size_t{2} << 20) / bytes, 1, 200);
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t call = 0; call < calls; ++call) group.all_reduce(data, bytes / 4, DType::kFloat32);
  double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  group.all_reduce(&spent, 1, DType::kFloat64, ReduceOp::kMax);
  return {spent / static_cast<double>(calls), spent};
}

// The median time of each candidate's turns, with fewer turns if a busy machine takes long. The same on all ranks.
std::vector<double> take_turns(const Candidates& candidates, const std::function<std::byte*(const Candidate&)>& memory,
                               std::size_t bytes) {
  std::vector<std::vector<double>> samples(candidates.size());
  double spent = 0;
  for (int turn = 0; turn <= kTurns && (turn <= kFewestTurns || spent < kSecondsASize); ++turn)
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const Sample sample = time_calls(candidates[c]->group(), memory(*candidates[c]), bytes);
      spent += sample.spent;
      if (turn > 0) samples[c].push_back(sample.seconds);  // the first turn warms up
    }
  std::vector<double> medians;
  for (const auto& times : samples) medians.push_back(quantile(times, 0.5));
  return medians;
}

class Tuner {
 public:
  explicit Tuner(const Tuning& start) : tuning_(start), plain_(kLargest) {}

  Tuning run() {
    choose_flat_bytes();
    choose_tile_bytes();
    return tuning_;
  }

 private:
  void choose_flat_bytes() {
    Tuning whole = tuning_, slices = tuning_;
    whole.flat_bytes = host::kSlotBytes;
    slices.flat_bytes = slices.line_bytes;
    const Candidates candidates = make({{"whole", whole}, {"slices", slices}});
    tuning_.flat_bytes = tuning_.line_bytes;
    bool whole_wins = true;
    for (std::size_t bytes = 64; bytes <= host::kSlotBytes; bytes *= 2) {
      const auto registered = take_turns(
          candidates, [](const Candidate& c) { return c.registered(); }, bytes);
      const auto plain = measure_plain(candidates, bytes);
      print("registered", candidates, bytes, registered);
      print("plain", candidates, bytes, plain);
      whole_wins = whole_wins && registered[0] * plain[0] <= registered[1] * plain[1];
      if (whole_wins) tuning_.flat_bytes = bytes;
    }
  }

  void choose_tile_bytes() {
    std::vector<std::pair<std::string, Tuning>> tables;
    for (std::size_t bytes = 64 * 1024; bytes <= host::kTileBytes; bytes *= 2)
      tables.emplace_back("tiles " + bytes_text(bytes), tuning_).second.tile_bytes = bytes;
    tuning_.tile_bytes = tables[fastest(make(tables), tables.size() - 1)].second.tile_bytes;
  }

  // The fastest candidate over all sizes, each counting alike; another one than `usual` only if it is clearly faster.
  std::size_t fastest(const Candidates& candidates, std::size_t usual) {
    std::vector<double> logarithms(candidates.size());
    int sizes = 0;
    for (std::size_t bytes = 1 << 20; bytes <= kLargest; bytes *= 4, ++sizes) {
      const auto times = measure_plain(candidates, bytes);
      print("plain", candidates, bytes, times);
      for (std::size_t c = 0; c < times.size(); ++c) logarithms[c] += std::log(times[c]);
    }
    const auto best =
        static_cast<std::size_t>(std::min_element(logarithms.begin(), logarithms.end()) - logarithms.begin());
    return logarithms[best] < logarithms[usual] + sizes * std::log(kClearly) ? best : usual;
  }

  std::vector<double> measure_plain(const Candidates& candidates, std::size_t bytes) {
    return take_turns(
        candidates, [this](const Candidate&) { return plain_.data(); }, bytes);
  }

  static Candidates make(const std::vector<std::pair<std::string, Tuning>>& tables) {
    Candidates candidates;
    for (const auto& [name, tuning] : tables) candidates.push_back(std::make_unique<Candidate>(name, tuning));
    return candidates;
  }

  static void print(const char* memory, const Candidates& candidates, std::size_t bytes,
                    const std::vector<double>& seconds) {
    if (candidates[0]->group().rank() != 0) return;
    fmt::print("{:>10} {:>8}", memory, bytes_text(bytes));
    for (std::size_t c = 0; c < seconds.size(); ++c)
      fmt::print("   {} {:.2f} us", candidates[c]->name(), seconds[c] * 1e6);
    fmt::print("\n");
    std::fflush(stdout);
  }

  Tuning tuning_;
  std::vector<std::byte> plain_;
};

}  // namespace

int tune(const std::string& file) {
  const auto group = init_process_group();
  if (group->world_size() < 2) throw InvalidArgument("--tune: a single rank has nothing to tune; see --ranks");
  const host::TuningOrigin here = host::tuning_origin_here(group->world_size());
  const Tuning tuning = Tuner(host::default_tuning(here.ranks, here.cores)).run();
  if (group->rank() == 0) {
    const std::string table = host::to_json({tuning, here});
    std::ofstream out(file);
    out << table << '\n';
    out.close();
    if (!out) throw FileError("--tune: cannot write '{}'", file);
    fmt::print("{}\nwritten to {}; load it with {}={}\n", table, file, env::kTuning, file);
  }
  group->barrier();
  return 0;
}

}  // namespace lockstep::bench
