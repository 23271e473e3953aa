// A job that saves and loads checkpoints: checkpoint_job FOLDER COMMAND...
//
//   save=STEP  over=STEP (with .overwrite)  load  prepare  writer (a SummaryWriter: does this rank write?)
//   touch=FILE  wait=FILE (until it exists)  thread (the next commands run on a second thread)  nolocks (the file
//   system has no locks)
// Each command prints "rank R: COMMAND: result" or the error; then the next one runs.
#include <dlfcn.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/train/summary_writer.h"
#include "tests/train/checkpoint_trainee.h"

namespace {

namespace fs = std::filesystem;
namespace ls = lockstep;

std::atomic<bool> has_locks{true};

}  // namespace

// The library calls this function instead of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  static auto* const real = reinterpret_cast<int (*)(int, int)>(::dlsym(RTLD_NEXT, "flock"));
  if (has_locks) return real(fd, operation);
  errno = ENOLCK;
  return -1;
}

namespace {

void wait_for(const std::string& file) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  while (!fs::exists(file)) {
    if (std::chrono::steady_clock::now() > deadline) throw ls::Error("wait: {} did not arrive", file);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string result_of(const std::string& folder, const std::string& command, ls::train::CheckpointTrainee& trainee) {
  const std::size_t sign = command.find('=');
  const std::string what = command.substr(0, sign), value = sign == command.npos ? "" : command.substr(sign + 1);
  if (what == "save" || what == "over") {
    ls::train::CheckpointParts parts = trainee.parts(std::atoi(value.c_str()));
    parts.overwrite = what == "over";
    return "'" + ls::train::save_checkpoint(folder, parts) + "'";
  }
  if (what == "load") {
    const auto state = ls::train::load_checkpoint(folder, trainee.parts());
    return state ? "step " + std::to_string(state->step) : "none";
  }
  if (what == "prepare") return ls::train::prepare_checkpoint_folder(folder), "done";
  if (what == "writer") return ls::train::SummaryWriter(folder + "-events").writes() ? "writes" : "does not write";
  if (what == "touch") return std::ofstream(value).put('.'), "done";
  if (what == "wait") return wait_for(value), "done";
  if (what == "nolocks") return has_locks = false, "done";
  throw ls::InvalidArgument("checkpoint_job: unknown command '{}'", command);
}

void run_all(const std::string& folder, std::vector<std::string> commands, ls::train::CheckpointTrainee& trainee,
             int rank) {
  while (!commands.empty()) {
    const std::string command = commands.front();
    commands.erase(commands.begin());
    if (command == "thread") {
      std::thread([&] { run_all(folder, std::move(commands), trainee, rank); }).join();
      return;
    }
    std::string result;
    try {
      result = result_of(folder, command, trainee);
    } catch (const ls::Error& error) {
      result = error.what();
    }
    std::printf("rank %d: %s: %s\n", rank, command.c_str(), result.c_str());
    std::fflush(stdout);
  }
}

int run(int count, char** arguments) {
  if (count < 3) throw ls::InvalidArgument("usage: checkpoint_job FOLDER COMMAND...");
  const auto group = ls::init_process_group();
  ls::train::CheckpointTrainee trainee(2);
  run_all(arguments[1], {arguments + 2, arguments + count}, trainee, group->rank());
  group->barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("checkpoint_job", run, argc, argv); }
