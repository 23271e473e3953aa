#include "launcher/command_line.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "launcher/torchrun_flags.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "src/comm/rendezvous/environment_reader.h"
#include "src/core/device/device_choice.h"
#include "src/core/device/device_configuration.h"
#include "src/launch/launchers/given_flags.h"
#include "src/launch/launchers/srun_nodes.h"
#include "src/launch/launchers/torchrun_environment.h"
#include "src/launch/topology/gpus.h"

namespace lockstep::launcher {

namespace {

constexpr long kMaxNodes = kMaxRanks;  // each has at least one
constexpr long kDefaultPort = 29500;   // torchrun's default

constexpr const char* kNotes = R"(
Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK (GROUP_RANK), MASTER_ADDR, MASTER_PORT, LOCKSTEP_TOKEN and
OMP_NUM_THREADS (cores / ranks) in its environment; OMP_NUM_THREADS, LOCKSTEP_TOKEN and LOCKSTEP_TOKEN_FILE stay as you set them.

GPUs     are assigned to the ranks in the order of --gpus; numbers count the GPUs in CUDA_VISIBLE_DEVICES, as in a program. 'auto' (the
         default) takes GPUs if there are any, else the CPU, and prints the reason; LOCKSTEP_DEVICE, if set, takes precedence. An
         unusable GPU is an error, and so are more ranks than GPUs. --share-gpu K makes K logical GPUs of each, with equal parts of
         the memory (LOCKSTEP_GPU_MEMORY, if set, is kept); on the CPU it makes K parts of the cores. --devices cpu:2x is --gpus none
         --share-gpu 2 -n 2, and --devices cuda:0:2x is --gpus 0 --share-gpu 2 -n 2. With --nnodes each node has its own flags.
         `lockrun topology` shows the devices.

Ranks    -n gpu: one for each GPU (times --share-gpu); cpu: for each core that lockrun may use; auto: GPUs if there are any, else cores.

Tasks    --ps P --workers W: W workers, the first ranks, and P servers that hold the parameters (strategy parameter_server), on all nodes
         together. Each also finds LOCKSTEP_JOB (worker, ps), LOCKSTEP_TASK_INDEX, LOCKSTEP_NUM_WORKERS and LOCKSTEP_NUM_PS, and its
         lines begin with "[worker:0] " or "[ps:0] ". Servers use no GPU. -n may be omitted; with --nnodes it is this node's number.

Nodes    with --nnodes K run lockrun once on each of K machines, each with its own --node-rank and any -n. Node 0 waits at
         --master-addr (one of its own addresses, also IPv6), the others wait for it, up to LOCKSTEP_STORE_TIMEOUT_S (60) seconds. All
         need the same secret in LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE (`openssl rand -hex 32`). The first failure, a signal to
         any lockrun or the loss of one ends all; all report the same cause and exit with the same code (75 if a node was lost).
         Lockruns that are tasks of `srun --ntasks-per-node=1` are the nodes of one job, unless --nnodes 1 is given.

Input    rank 0 reads lockrun's stdin when that is a file or a pipe; from a terminal, and on all other ranks, it is /dev/null.
Output   complete lines after "[rank] ", without delay; cut between characters above 16 MiB. stdout and stderr are separate, unless both go
         to one file. A line that ranks write within 100 ms of each other is printed once, after "[0-3] " or "[0,2] ", also if it differs
         only in 'rank R' (--no-fold). --no-prefix adds and removes no byte. A rank's stdout is a terminal, as under mpirun, with TERM=dumb
         if lockrun's is not one; --no-terminal makes it a pipe, to which C programs write late, and lose lines when they crash.
Failure  the first rank that fails ends the others within 2 s (SIGTERM, then SIGKILL); its last lines on stderr are repeated. With
         --allow-worker-failures only a server does, or the last worker; lockrun names the failed workers, and exits with 0.
         A rank that exits with 75 has only lost a peer and is not the cause.
Restarts --max-restarts N starts all ranks again after a failure, on all nodes, with the same ports and token; the program loads its newest
         checkpoint, and finds the number of the attempt in LOCKSTEP_RESTART_COUNT. No restart after a signal, exit code 85 (saved and left
         on request), a program that cannot be run or refuses its arguments, and the same failure at the same step twice in a row. At
         the end a line for each attempt says when it began, from which step, and what failed first; --report FILE has the same as JSON.
Signals  Ctrl-C, SIGTERM, SIGHUP and SIGQUIT are passed on, and after 5 s (--grace-period) followed by SIGKILL; a second one kills at once.
         SIGUSR1 requests the flight records of this node's ranks; `lockrun diagnose DIR` explains those in --flight-dir.
         SIGUSR2 and others that schedulers send are passed on to ranks with a handler for it; a line names the ranks without one.
Exit     0, or the failing rank's code; 1: the ranks' output cannot be written; 128 + N for a signal; 126 or 127: the
         program cannot be run or found; 2: an invalid flag.

Example: lockrun -n 2 build/examples/cifar10 --epochs 3
         lockrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 -n 4 build/examples/cifar10     and with --node-rank 1 elsewhere)";

// A flag in cxxopts' form, "n,nproc-per-node": at most one letter, and its name.
struct Flag {
  const char* names;
  const char* description;
  const char* value = "";  // the value's name in the usage text; "": the flag takes none
};

constexpr Flag kFlags[] = {
    {"n,nproc-per-node", "number of ranks on this node; or gpu, cpu (one for each), auto", "N"},
    {"ps", "number of ranks that hold parameters for --workers", "P"},
    {"workers", "number of ranks that compute, with --ps", "W"},
    {"allow-worker-failures",
     "with --ps, on one node: the job goes on without workers that fail, as long as one is left"},
    {"nnodes", "number of nodes (1)", "K"},
    {"standalone", "only this node (the default)"},
    {"node-rank", "number of this node, from 0", "I"},
    {"master-addr", "node 0's name or address", "A"},
    {"master-port",
     "a free port there (29500); with one node the ranks' MASTER_PORT, which is left to the program (any free one)",
     "P"},
    {"gpus", "auto, all, none, numbers (0,1) or UUIDs (GPU-8c9f)", "LIST"},
    {"share-gpu", "K ranks on each GPU, or on parts of the CPU (1)", "K"},
    {"devices", "one device as several, a rank on each: cpu:2x, cuda:0:2x, cuda:0:2x,cuda:1:2x", "LIST"},
    {"flight-dir", "where each rank writes its last operations when the job fails, and on SIGUSR1", "DIR"},
    {"no-prefix", "do not change the ranks' output"},
    {"no-fold", "print a line that several ranks write once for each rank (default: once for all, [0-3])"},
    {"no-terminal",
     "give the ranks a pipe as their stdout (default: a terminal, into which programs write line by line)"},
    {"max-restarts", "start a job that has failed again, up to N times; it continues from its checkpoint (0)", "N"},
    {"grace-period", "seconds from a signal to lockrun until it kills its ranks (5)", "S"},
    {"report", "a JSON file about the attempts: when each began, from which step, what failed first and why", "FILE"},
    {"no-bind", "do not bind ranks to cores (default: disjoint cores when there are enough, near the rank's GPU)"},
    {"h,help", "print this text"},
    {"version", "print the version"},
};

bool takes_value(const Flag& flag) { return *flag.value != '\0'; }

cxxopts::Options make_options() {
  cxxopts::Options options(
      "lockrun", "Starts a program as N ranks on this machine, or on each of several, and ends them together.");
  options.custom_help("-n N [flags] program [arguments...]").set_width(110);
  for (const Flag& flag : kFlags) {
    if (takes_value(flag))
      options.add_options()(flag.names, flag.description, cxxopts::value<std::string>(), flag.value);
    else
      options.add_options()(flag.names, flag.description);
  }
  return options;
}

// "-n", "--nproc-per-node", "--nnodes", ...: the flags whose value is the next word.
std::set<std::string> flags_with_value() {
  std::set<std::string> found;
  for (const Flag& flag : kFlags) {
    if (!takes_value(flag)) continue;
    const std::string names = flag.names;
    const std::size_t comma = names.find(',');
    if (comma != std::string::npos) found.insert("-" + names.substr(0, comma));
    found.insert("--" + (comma == std::string::npos ? names : names.substr(comma + 1)));
  }
  return found;
}

// Users of torchrun write --node_rank as well as --node-rank.
std::string with_hyphens(std::string flag) {
  const std::size_t end = flag.rfind("--", 0) == 0 ? std::min(flag.find('='), flag.size()) : 0;
  std::replace(flag.begin(), flag.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return flag;
}

// Returns the words that are lockrun's own flags.
std::vector<std::string> take_flags(const std::vector<std::string>& words) {
  static const std::set<std::string> kWithValue = flags_with_value();
  std::vector<std::string> flags;
  while (flags.size() < words.size()) {
    const std::string& word = words[flags.size()];
    if (word.size() < 2 || word[0] != '-' || word == "--") break;
    flags.push_back(with_hyphens(word));
    if (const auto advice = advice_on_torchruns_flag(flags.back().substr(0, flags.back().find('='))))
      throw InvalidArgument("{}", *advice);
    if (kWithValue.count(flags.back()) > 0 && flags.size() < words.size()) flags.push_back(words[flags.size()]);
  }
  return flags;
}

cxxopts::ParseResult parse_flags(cxxopts::Options& options, const std::vector<std::string>& flags) {
  std::vector<const char*> arguments = {"lockrun"};
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  try {
    return options.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const cxxopts::exceptions::exception& error) {
    throw InvalidArgument("{}", error.what());
  }
}

// The flag's value; it may be given at most once.
std::optional<std::string> text_of(const cxxopts::ParseResult& parsed, const char* name, const char* shown) {
  if (parsed.count(name) > 1) throw InvalidArgument("{} is given more than once", shown);
  return parsed.count(name) == 0 ? std::nullopt : std::optional(parsed[name].as<std::string>());
}

int whole_number(const char* shown, const std::string& value, long low, long high) {
  try {
    return static_cast<int>(env::parse_integer(shown, value, low, high));
  } catch (const InvalidArgument&) {
    throw InvalidArgument("{} {}: expected an integer from {} to {}", shown, value, low, high);
  }
}

std::optional<int> number_of(const cxxopts::ParseResult& parsed, const char* name, const char* shown, long low,
                             long high) {
  const auto value = text_of(parsed, name, shown);
  return value ? std::optional(whole_number(shown, *value, low, high)) : std::nullopt;
}

// Accepts torchrun's "K" and "K:K"; lockrun does not support elastic nodes.
int number_of_nodes(const cxxopts::ParseResult& parsed) {
  const std::string text = text_of(parsed, "nnodes", "--nnodes").value_or("1");
  const launch::NodeRange range = launch::node_range(text);
  if (range.least != range.most)
    throw InvalidArgument(
        "--nnodes {}: lockrun does not support elastic nodes; write their number, --nnodes K, and --node-rank I on "
        "each",
        text);
  const int nodes = whole_number("--nnodes", range.least, 1, kMaxNodes);
  if (nodes > 1 && parsed.count("standalone") > 0)
    throw InvalidArgument("--standalone is for one node, --nnodes {} for several", nodes);
  return nodes;
}

// --devices has the syntax of LOCKSTEP_LOGICAL_DEVICES; here there is a rank for each part, and -n may be omitted.
void read_devices(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  const auto text = text_of(parsed, "devices", "--devices");
  if (!text) return;
  if (parsed.count("gpus") > 0 || parsed.count("share-gpu") > 0)
    throw InvalidArgument("--devices {}: it determines the devices and the ranks on each: omit --gpus and --share-gpu",
                          *text);
  const DeviceConfiguration devices = parse_logical_devices("--devices", *text);
  if (devices.splits.empty()) {
    spec.gpus = "none";
    spec.ranks = spec.share_gpu = devices.cpus;
    return;
  }
  if (devices.cpus > 1)
    throw InvalidArgument("--devices {}: the ranks of a job compute on the CPU or on GPUs, not on both", *text);
  spec.share_gpu = devices.splits.begin()->second.parts;
  for (const auto& [gpu, split] : devices.splits) {
    if (!split.limits.empty())
      throw InvalidArgument(
          "--devices {}: ranks have equal parts of the memory: cuda:{}:{}x, and LOCKSTEP_GPU_MEMORY for another size",
          *text, gpu, split.parts);
    if (split.parts != spec.share_gpu)
      throw InvalidArgument("--devices {}: each GPU needs the same number of ranks", *text);
    spec.gpus += (spec.gpus.empty() ? "" : ",") + std::to_string(gpu);
  }
  spec.ranks = spec.share_gpu * static_cast<int>(devices.splits.size());
}

// A parameter server's job. On one node its flags determine the number of ranks.
void read_tasks(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  spec.servers = number_of(parsed, "ps", "--ps", 0, kMaxRanks).value_or(0);
  spec.workers = number_of(parsed, "workers", "--workers", 0, kMaxRanks).value_or(0);
  if (parsed.count("ps") == 0 && parsed.count("workers") == 0) return;
  if (spec.workers == 0)
    throw InvalidArgument("--ps {} needs workers, which compute: --workers W, at least 1", spec.servers);
  if (spec.servers == 0)
    throw InvalidArgument(
        "--workers {} needs servers, which hold the parameters: --ps P, at least 1; for ranks without servers write -n "
        "{}",
        spec.workers, spec.workers);
  const int all = spec.servers + spec.workers;
  const auto stated = text_of(parsed, "nproc-per-node", "-n");
  if (number_of_nodes(parsed) > 1) {
    if (stated) return;
    throw InvalidArgument(
        "--ps {} --workers {} are {} ranks on several nodes: the number on this node, -n N, is missing", spec.servers,
        spec.workers, all);
  }
  const bool by_devices = parsed.count("devices") > 0;
  if ((stated && *stated != std::to_string(all)) || (!stated && by_devices && spec.ranks != all))
    throw InvalidArgument("--ps {} --workers {} are {} ranks, and {} says {}: omit it, or make it agree", spec.servers,
                          spec.workers, all, stated ? "-n" : "--devices",
                          stated ? *stated : std::to_string(spec.ranks));
  spec.ranks = all;
}

// The number of ranks: a number, or torchrun's words for the devices of this node.
void read_ranks(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  using RanksFrom = launch::LaunchSpec::RanksFrom;
  static const std::map<std::string, RanksFrom> kWords = {
      {"auto", RanksFrom::kDevices}, {"gpu", RanksFrom::kGpus}, {"cpu", RanksFrom::kCores}};
  const auto text = text_of(parsed, "nproc-per-node", "-n");
  if (!text && spec.ranks > 0) return;  // determined by --devices, or by --ps and --workers
  if (!text) throw InvalidArgument("the number of ranks, -n N, is missing");
  if (const auto word = kWords.find(*text); word != kWords.end())
    spec.ranks_from = word->second;
  else
    spec.ranks = whole_number("-n", *text, 1, kMaxRanks);
}

// A single node needs none of these flags, but accepts them, so that a script need not distinguish.
void read_nodes(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  spec.nodes = number_of_nodes(parsed);
  const auto node_rank = number_of(parsed, "node-rank", "--node-rank", 0, kMaxNodes - 1);
  const auto host = text_of(parsed, "master-addr", "--master-addr");
  const auto port = number_of(parsed, "master-port", "--master-port", 1, kMaxPort);
  spec.master_port = static_cast<std::uint16_t>(port.value_or(spec.nodes == 1 ? 0 : kDefaultPort));
  if (node_rank && *node_rank >= spec.nodes)
    throw InvalidArgument("--node-rank {} does not exist with --nnodes {}: nodes count from 0", *node_rank, spec.nodes);
  if (spec.nodes == 1) return;
  if (!node_rank) throw InvalidArgument("--nnodes {}: the number of this node, --node-rank I, is missing", spec.nodes);
  if (!host || host->empty())
    throw InvalidArgument("--nnodes {}: the address of node 0, --master-addr A, is missing", spec.nodes);
  spec.node_rank = *node_rank;
  spec.master_host =
      host->size() > 2 && host->front() == '[' && host->back() == ']' ? host->substr(1, host->size() - 2) : *host;
}

}  // namespace

std::variant<launch::LaunchSpec, Information> parse_command_line(const std::vector<std::string>& words,
                                                                 const EnvironmentLookup& lookup) {
  cxxopts::Options options = make_options();
  const std::vector<std::string> flags = take_flags(words);
  const cxxopts::ParseResult parsed =
      parse_flags(options, launch::with_srun_nodes(launch::with_torchruns_variables(flags, lookup), lookup));
  if (parsed.count("help") > 0) return Information{options.help() + kNotes + "\n"};
  if (parsed.count("version") > 0) return Information{"lockrun " LOCKSTEP_VERSION "\n"};
  launch::LaunchSpec spec;
  spec.ranks = 0;
  read_devices(parsed, spec);
  read_tasks(parsed, spec);
  read_ranks(parsed, spec);
  read_nodes(parsed, spec);
  if (const auto share = number_of(parsed, "share-gpu", "--share-gpu", 1, kMaxShare)) spec.share_gpu = *share;
  if (const auto gpus = text_of(parsed, "gpus", "--gpus")) {
    spec.gpus = *gpus;
    launch::parse_gpus(spec.gpus, 1);  // here, so that an error comes with the usage text
  }
  if (const auto folder = text_of(parsed, "flight-dir", "--flight-dir")) {
    if (folder->empty()) throw InvalidArgument("--flight-dir: the folder is missing");
    spec.flight_dir = std::filesystem::absolute(*folder).string();
  }
  spec.allow_worker_failures = parsed.count("allow-worker-failures") > 0;
  spec.prefix = parsed.count("no-prefix") == 0;
  spec.fold = parsed.count("no-fold") == 0;
  spec.terminals = parsed.count("no-terminal") == 0;
  spec.max_restarts = number_of(parsed, "max-restarts", "--max-restarts", 0, 1'000'000).value_or(0);
  if (const auto grace = number_of(parsed, "grace-period", "--grace-period", 0, 24 * 3600))
    spec.interrupt_grace = std::chrono::seconds(*grace);
  if (const auto file = text_of(parsed, "report", "--report")) {
    if (file->empty()) throw InvalidArgument("--report: the file's name is missing");
    spec.report_file = std::filesystem::absolute(*file).string();
  }
  spec.bind_cores = parsed.count("no-bind") == 0;
  std::size_t program = flags.size();
  if (program < words.size() && words[program] == "--") ++program;
  spec.command.assign(words.begin() + static_cast<std::ptrdiff_t>(program), words.end());
  if (spec.command.empty()) throw InvalidArgument("the program is missing; its name follows the flags");
  return spec;
}

}  // namespace lockstep::launcher
