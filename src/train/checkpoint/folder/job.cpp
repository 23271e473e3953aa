#include "src/train/checkpoint/folder/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/crypto.h"

namespace lockstep::train::checkpoint {

namespace {

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string time_text(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// Field 22 of /proc/PID/stat; 0 if there is no such process, or it is a zombie, which has closed its files.
std::int64_t start_ticks_of(std::int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t name_end = text.rfind(')');
  if (name_end == text.npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  constexpr int kState = 3, kStart = 22;
  for (int i = kState; i <= kStart; ++i) {
    if (!(fields >> field)) return 0;
    if (i == kState && (field == "Z" || field == "X")) return 0;
  }
  return std::stoll(field);
}

Job make_job() {
  std::array<std::byte, 8> random;
  crypto::fill_random(random);
  const std::int64_t process = ::getpid();
  return {crypto::hex(random), this_host(), process, start_ticks_of(process), time_text(std::time(nullptr))};
}

}  // namespace

std::string Job::text() const {
  if (id.empty()) return "an unknown job";
  return fmt::format("job {} (process {} on {}, started {})", id, process, host, started);
}

bool Job::runs_on_this_host() const {
  if (id.empty() || id == this_job().id || host != this_job().host) return false;
  const std::int64_t ticks = start_ticks_of(process);
  return ticks != 0 && ticks == start_ticks;
}

void to_json(nlohmann::json& json, const Job& job) {
  json = {{"id", job.id},
          {"host", job.host},
          {"process", job.process},
          {"start_ticks", job.start_ticks},
          {"started", job.started}};
}

Job job_of(const nlohmann::json& json) {
  Job job;
  const auto take = [&json](const char* key, auto& value) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    if (found == json.end()) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      if (found->is_string()) value = found->template get<std::string>();
    } else if (found->is_number_integer()) {
      value = found->template get<std::int64_t>();
    }
  };
  take("id", job.id);
  take("host", job.host);
  take("process", job.process);
  take("start_ticks", job.start_ticks);
  take("started", job.started);
  return job;
}

const Job& this_job() {
  static const Job kJob = make_job();
  return kJob;
}

}  // namespace lockstep::train::checkpoint
