#include "src/diagnose/record_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/digits.h"
#include "src/core/process/regular_file.h"

namespace lockstep::diagnose {

namespace fs = std::filesystem;

namespace {

// "rank7.json"
bool is_record_name(std::string_view name) {
  constexpr std::string_view kBegin = "rank", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  return is_digits(name);
}

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // of a record

FlightDump read_record(const fs::path& path) {
  const RegularFile file = open_regular_file(path.string());
  if (file.bytes > kMostBytes)
    throw FileError("{}: it has {} bytes, a flight record has at most {}", path.string(), file.bytes, kMostBytes);
  std::string text(file.bytes, '\0');
  text.resize(read_some(file.fd, text.data(), text.size(), path.string()));
  return flight_dump_from_json(text, path.filename().string());
}

std::string how_to_get_some() {
  return fmt::format(
      "start the job with `lockrun --flight-dir DIR` (or {}=DIR on every rank); records are written there when a group "
      "fails, and on SIGUSR1 to a rank or to lockrun",
      env::kFlightDir);
}

}  // namespace

Records sort_out(std::vector<FlightDump> dumps) {
  Records records;
  if (dumps.empty()) return records;
  const auto newest = std::max_element(
      dumps.begin(), dumps.end(), [](const FlightDump& a, const FlightDump& b) { return a.written_ns < b.written_ns; });
  const std::string job = newest->job;
  const std::int64_t written = newest->written_ns;
  std::stable_sort(dumps.begin(), dumps.end(),
                   [](const FlightDump& a, const FlightDump& b) { return a.rank < b.rank; });
  for (FlightDump& dump : dumps) {
    if (dump.job == job)
      records.dumps.push_back(std::move(dump));
    else
      records.ignored.push_back(
          fmt::format("{} belongs to another job and was written {:.0f} s before the newest: ignored. Remove it, or "
                      "give every job a folder of its own",
                      flight_file_name(dump.rank), static_cast<double>(written - dump.written_ns) * 1e-9));
  }
  return records;
}

Records read_folder(const fs::path& folder) {
  std::error_code failure;
  if (!fs::is_directory(folder, failure))
    throw FileError("diagnose: {} is not a folder with flight records: {}", folder.string(), how_to_get_some());
  std::vector<FlightDump> dumps;
  std::vector<std::string> broken;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_record_name(entry.path().filename().string())) continue;
    try {
      dumps.push_back(read_record(entry.path()));
    } catch (const FileError& error) {
      broken.push_back(std::string(error.what()) + ". It is ignored");
    }
  }
  if (dumps.empty() && !broken.empty())
    throw FileError("diagnose: no record in {} can be read: {}", folder.string(), broken.front());
  if (dumps.empty())
    throw FileError("diagnose: {} holds no flight record (rank<R>.json): {}", folder.string(), how_to_get_some());
  Records records = sort_out(std::move(dumps));
  std::sort(broken.begin(), broken.end());
  records.ignored.insert(records.ignored.end(), broken.begin(), broken.end());
  return records;
}

}  // namespace lockstep::diagnose
