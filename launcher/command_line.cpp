#include "launcher/command_line.h"

#include <cxxopts.hpp>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::launcher {

namespace {

constexpr long kMaxRanks = 4096;

constexpr const char* kNotes = R"(
Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_TOKEN and
OMP_NUM_THREADS (cores / ranks) in its environment; OMP_NUM_THREADS, LOCKSTEP_TOKEN and LOCKSTEP_TOKEN_FILE stay as you set them.

Input    rank 0 reads lockrun's stdin when that is a file or a pipe; from a terminal, and on all other ranks, it is /dev/null.
Output   whole lines, "[rank] " in front; longer than 64 KiB is cut. stdout and stderr stay apart. Under --no-prefix no byte
         is added or removed.
Failure  the first rank that fails ends the others within 2 s (SIGTERM, then SIGKILL); its last lines on stderr are repeated.
         A rank that leaves with 75 has only lost a peer and is not blamed.
Signals  Ctrl-C, SIGTERM and SIGHUP are passed on, and after 5 s followed by SIGKILL; a second one kills at once.
Exit     0, or the failing rank's code; 128 + N for a signal; 126 or 127: the program cannot be run or found; 2: a wrong flag.

Example: lockrun -n 2 build/examples/cifar10 --epochs 3)";

cxxopts::Options make_options() {
  cxxopts::Options options("lockrun", "Starts a program as N ranks on this machine and ends them together.");
  options.custom_help("-n N [flags] program [arguments...]").set_width(110);
  options.add_options()                                                                            //
      ("n,nproc-per-node", "how many ranks", cxxopts::value<std::string>(), "N")                   //
      ("no-prefix", "leave the ranks' output as it is")                                            //
      ("no-bind", "leave the ranks on all cores (default: disjoint cores when there are enough)")  //
      ("h,help", "this text")                                                                      //
      ("version", "the version");
  return options;
}

// The number of words that are lockrun's own.
std::size_t count_flags(const std::vector<std::string>& words) {
  std::size_t at = 0;
  while (at < words.size() && words[at].size() > 1 && words[at][0] == '-' && words[at] != "--")
    at += words[at] == "-n" || words[at] == "--nproc-per-node" ? 2 : 1;
  return std::min(at, words.size());
}

cxxopts::ParseResult parse_flags(cxxopts::Options& options, const std::vector<std::string>& words, std::size_t count) {
  std::vector<const char*> arguments = {"lockrun"};
  for (std::size_t i = 0; i < count; ++i) arguments.push_back(words[i].c_str());
  try {
    return options.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const cxxopts::exceptions::exception& error) {
    throw InvalidArgument("{}", error.what());
  }
}

}  // namespace

std::variant<launch::LaunchSpec, Information> parse_command_line(const std::vector<std::string>& words) {
  cxxopts::Options options = make_options();
  std::size_t flags = count_flags(words);
  const cxxopts::ParseResult parsed = parse_flags(options, words, flags);
  if (parsed.count("help") > 0) return Information{options.help() + kNotes + "\n"};
  if (parsed.count("version") > 0) return Information{"lockrun " LOCKSTEP_VERSION "\n"};
  if (parsed.count("nproc-per-node") == 0) throw InvalidArgument("how many ranks? -n N is missing");
  if (parsed.count("nproc-per-node") > 1) throw InvalidArgument("-n is given more than once");
  launch::LaunchSpec spec;
  try {
    spec.ranks = static_cast<int>(env::parse_integer("-n", parsed["nproc-per-node"].as<std::string>(), 1, kMaxRanks));
  } catch (const InvalidArgument&) {
    throw InvalidArgument("-n {}: a whole number from 1 to {} is needed", parsed["nproc-per-node"].as<std::string>(), kMaxRanks);
  }
  spec.prefix = parsed.count("no-prefix") == 0;
  spec.bind_cores = parsed.count("no-bind") == 0;
  if (flags < words.size() && words[flags] == "--") ++flags;
  spec.command.assign(words.begin() + static_cast<std::ptrdiff_t>(flags), words.end());
  if (spec.command.empty()) throw InvalidArgument("which program? Its name follows the flags");
  return spec;
}

}  // namespace lockstep::launcher
