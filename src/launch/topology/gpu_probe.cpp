#include "src/launch/topology/gpu_probe.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"
#include "src/launch/supervise/pipe.h"
#include "src/launch/supervise/waiting.h"

namespace lockstep::launch {

namespace {

using nlohmann::json;

constexpr const char* kRemedy = "does nvidia-smi answer?";

std::string answer(const std::function<GpuSearch()>& search) {
  json text;
  try {
    const GpuSearch found = search();
    text = {{"gpus", json::array()}, {"why_none", found.why_none}};
    for (const cuda::Gpu& gpu : found.gpus)
      text["gpus"].push_back({{"name", gpu.name},
                              {"uuid", gpu.uuid},
                              {"pci", gpu.pci},
                              {"memory", gpu.memory_bytes},
                              {"major", gpu.compute_major},
                              {"minor", gpu.compute_minor}});
  } catch (const std::exception& error) {
    text = {{"fault", error.what()}};
  }
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

GpuSearch read_answer(const std::string& text) {
  const json found = json::parse(text);
  if (found.contains("fault")) throw Error("{}", found["fault"].get<std::string>());
  GpuSearch search{{}, found.at("why_none")};
  for (const json& each : found.at("gpus"))
    search.gpus.push_back({static_cast<int>(search.gpus.size()), each.at("name"), each.at("uuid"), each.at("pci"),
                           each.at("memory"), each.at("major"), each.at("minor")});
  return search;
}

// Reads to the pipe's end; nullopt if that does not come in time.
std::optional<std::string> read_until(const Fd& fd, Clock::time_point deadline) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{fd.get(), POLLIN, 0};
    const int ready = left <= 0 ? 0 : ::poll(&wanted, 1, static_cast<int>(left));
    if (ready == 0) return std::nullopt;
    if (ready < 0 && errno != EINTR) throw Error("launch: poll: {}", std::strerror(errno));
    if (ready < 0) continue;
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got == 0) return text;
    if (got > 0) text.append(piece.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) throw Error("launch: read: {}", std::strerror(errno));
  }
}

// Returns how it ended; 0 if that is unknown. A process that hangs in the driver does not even obey SIGKILL: it is
// left.
int reap(pid_t pid, bool stuck) {
  int status = 0;
  if (stuck) {
    ::kill(pid, SIGKILL);
    ::usleep(100'000);
  }
  while (::waitpid(pid, &status, stuck ? WNOHANG : 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

GpuSearch search_apart(const std::function<GpuSearch()>& search, std::chrono::milliseconds deadline) {
  Pipe pipe = make_pipe();
  std::fflush(nullptr);  // otherwise the child would print buffered text a second time
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error("launch: cannot start the search for GPUs: {}", why_not_started(errno));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launcher) ::_exit(1);
    pipe.read_end.reset();
    const std::string text = answer(search);
    ::_exit(write_all(pipe.write_end.get(), text.data(), text.size()) ? 0 : 1);
  }
  pipe.write_end.reset();
  const auto text = read_until(pipe.read_end, Clock::now() + deadline);
  const int status = reap(pid, !text);
  if (!text) throw Error("the search for GPUs did not end within {} ms: {}", deadline.count(), kRemedy);
  if (WIFSIGNALED(status))
    throw Error("the search for GPUs was ended by signal {} ({}): {}", WTERMSIG(status), ::strsignal(WTERMSIG(status)),
                kRemedy);
  if (WEXITSTATUS(status) != 0 || text->empty())
    throw Error("the search for GPUs exited with code {} and without an answer: {}", WEXITSTATUS(status), kRemedy);
  return read_answer(*text);
}

GpuSearch find_gpus_apart() {
  if (auto none = clearly_no_gpus()) return std::move(*none);
  return search_apart([] { return find_gpus(); });
}

}  // namespace lockstep::launch
