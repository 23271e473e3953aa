// Separate from error.cpp, which is also part of the CUDA library, which has no main and no signals of its own.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/error_of_peer.h"
#include "src/core/process/first_process.h"
#include "src/core/process/process_limits.h"
#include "src/core/process/progress_page.h"
#include "src/core/process/standard_streams.h"

namespace lockstep {

namespace {

int report(const char* program, const char* message, int exit_code) {
  std::fprintf(stderr, "%s: error: %s\n", program, message);
  std::fflush(nullptr);
  return exit_code;
}

// torchrun blames the rank with the earliest time in such a file, in the format of PyTorch's record(); for a rank
// without a file it uses the time at which it notices its exit. Errors of writing are ignored, because the message has
// been written to stderr.
void write_torchruns_error_file(const char* message, std::chrono::seconds delay) {
  const auto path = env::text(env::kTorchrunsErrorFile);
  if (!path) return;
  const nlohmann::json file = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr) + delay.count())}}}}}};
  std::ofstream(*path) << file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int fail(const char* program, const char* message, int exit_code) {
  note_error(message);
  write_torchruns_error_file(message, std::chrono::seconds(0));
  return report(program, message, exit_code);
}

// Runs after another rank's failure. Launchers other than lockrun blame the first process that exits, so this rank
// waits to let the failed rank exit first. torchrun looks for exited processes every few seconds at most, so for it the
// time in the file is later, too.
int follow(const char* program, const char* message) {
  constexpr auto kHeadStart = std::chrono::milliseconds(500);
  constexpr auto kLaterThanTheCause = std::chrono::seconds(60);
  note_error(message);
  report(program, message, kPeerLostExitCode);
  if (!env::text(env::kStoreHosted)) std::this_thread::sleep_for(kHeadStart);
  write_torchruns_error_file(message, kLaterThanTheCause);
  return kPeerLostExitCode;
}

// All output must have been written: a full disk is not success.
int finish(const char* program, int exit_code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && exit_code == 0)
    return report(program, "the standard output could not be written: is the disk full?", 1);
  std::fflush(nullptr);
  return exit_code;
}

}  // namespace

int run_main(const char* program, int (*body)(int argc, char** argv), int argc, char** argv) {
  occupy_standard_streams();
  if (env::text(env::kRank)) write_output_by_lines();
  end_on_signals_as_first_process();
  try {
    return finish(program, body(argc, argv));
  } catch (const PeerLost& error) {
    return follow(program, error.what());
  } catch (const ErrorOfPeer& error) {
    return follow(program, error.what());
  } catch (const FileErrorOfPeer& error) {
    return follow(program, error.what());
  } catch (const InvalidArgument& error) {
    return fail(program, error.what(), 2);
  } catch (const std::system_error& error) {
    // std::thread only reports the text of the error number.
    const bool is_of_thread = error.code().value() == EAGAIN && error.what() == std::string_view(std::strerror(EAGAIN));
    return fail(program, is_of_thread ? why_not_started(EAGAIN).c_str() : error.what(), 1);
  } catch (const std::exception& error) {
    return fail(program, error.what(), 1);
  }
}

}  // namespace lockstep
