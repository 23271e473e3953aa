#include "src/launch/topology/busy_cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "src/launch/output/line_folder.h"

namespace lockstep::launch {

namespace {

constexpr double kLeastShare = 0.2;    // of the cores' time
constexpr double kLeastWaiting = 0.1;  // of the time in which ranks are runnable

// The contents of /proc/PID/stat.
struct Process {
  pid_t parent = 0, group = 0;
  std::uint64_t ticks = 0;  // its own, and those of its reaped children
};

std::optional<Process> read_process(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");  // the name may contain any character
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 2));
  Process process;
  std::string skipped;
  fields >> skipped >> process.parent >> process.group;
  for (int i = 0; i < 8; ++i) fields >> skipped;  // session to cmajflt
  for (int i = 0; i < 4; ++i) {
    std::uint64_t ticks = 0;
    fields >> ticks;
    process.ticks += ticks;
  }
  return fields ? std::optional(process) : std::nullopt;
}

std::uint64_t growth(std::uint64_t begin, std::uint64_t end) { return end > begin ? end - begin : 0; }

}  // namespace

BusyCores::BusyCores(std::vector<int> cores, std::vector<pid_t> groups, Clock::time_point now, std::string proc)
    : cores_(std::move(cores)),
      groups_(std::move(groups)),
      proc_(std::move(proc)),
      due_(now + kWindow),
      is_done_(cores_.empty()) {}

BusyCores::Times BusyCores::read_times() const {
  Times times;
  std::ifstream file(proc_ + "/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (name.rfind("cpu", 0) != 0 || name.size() == 3) continue;
    if (std::find(cores_.begin(), cores_.end(), std::atoi(name.c_str() + 3)) == cores_.end()) continue;
    constexpr int kIdle = 3, kWaitsForDisk = 4, kFields = 8;  // user nice system idle iowait irq softirq steal
    std::uint64_t ticks = 0;
    for (int i = 0; i < kFields && fields >> ticks; ++i) {
      times.all += ticks;
      if (i != kIdle && i != kWaitsForDisk) times.busy += ticks;
    }
  }
  add_processes(times);
  return times;
}

// Adds the job's processes: those in the ranks' groups, and their descendants.
void BusyCores::add_processes(Times& times) const {
  std::map<pid_t, Process> all;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(proc_, failure)) {
    const auto pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (pid <= 0) continue;
    if (const auto process = read_process(entry.path())) all.emplace(pid, *process);
  }
  const auto is_of_rank = [this](const Process& process) {
    return std::find(groups_.begin(), groups_.end(), process.group) != groups_.end();
  };
  for (const auto& [pid, process] : all) {
    const Process* above = &process;
    for (int depth = 0; depth < 64 && !is_of_rank(*above); ++depth) {
      const auto parent = all.find(above->parent);
      if (parent == all.end()) break;
      above = &parent->second;
    }
    if (!is_of_rank(*above)) continue;
    times.own += process.ticks;
    std::uint64_t run = 0, waited = 0;
    std::ifstream(std::filesystem::path(proc_) / std::to_string(pid) / "schedstat") >> run >> waited;
    times.run += run;
    times.waited += waited;
  }
}

std::string BusyCores::look(Clock::time_point now) {
  if (is_done_ || now < due_) return "";
  const Times times = read_times();
  if (!begin_) {
    begin_ = times;
    due_ = now + kWindow;
    return "";
  }
  const std::string sentence = describe_share(*std::exchange(begin_, std::nullopt), times);
  is_done_ = !sentence.empty();
  due_ = now + rest_;
  rest_ = std::min(2 * rest_, kLongestRest);
  return sentence;
}

std::string BusyCores::describe_share(const Times& begin, const Times& end) const {
  const auto all = static_cast<double>(growth(begin.all, end.all)),
             busy = static_cast<double>(growth(begin.busy, end.busy));
  const auto run = static_cast<double>(growth(begin.run, end.run)),
             waited = static_cast<double>(growth(begin.waited, end.waited));
  const double others = busy - static_cast<double>(growth(begin.own, end.own));
  if (all <= 0 || others < kLeastShare * all || waited < kLeastWaiting * (run + waited) || waited <= 0) return "";
  std::vector<int> cores = cores_;
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return fmt::format(
      "lockrun: other processes take {:.0f} % of the time of the ranks' cores ({}), and the ranks wait for a core "
      "{:.0f} % of the time in which they need one: every step waits for the slowest rank\n",
      100 * others / all, ranges_of(cores), 100 * waited / (run + waited));
}

}  // namespace lockstep::launch
