#include "launcher/command_line.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "launcher/given_flags.h"
#include "launcher/srun_nodes.h"
#include "launcher/torchrun_environment.h"
#include "launcher/torchrun_flags.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "src/comm/rendezvous/environment_reader.h"
#include "src/core/device/device_choice.h"
#include "src/core/device/device_configuration.h"
#include "src/launch/topology/gpus.h"

namespace lockstep::launcher {

namespace {

constexpr long kMaxNodes = kMaxRanks;  // each has one at least
constexpr long kDefaultPort = 29500;   // torchrun's

constexpr const char* kNotes = R"(
Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK (GROUP_RANK), MASTER_ADDR, MASTER_PORT, LOCKSTEP_TOKEN and
OMP_NUM_THREADS (cores / ranks) in its environment; OMP_NUM_THREADS, LOCKSTEP_TOKEN and LOCKSTEP_TOKEN_FILE stay as you set them.

GPUs     rank by rank in the order of --gpus; numbers count what CUDA_VISIBLE_DEVICES leaves, as a program there would. 'auto' (the default)
         takes GPUs when there are any, else the CPU, and says why; LOCKSTEP_DEVICE, if set, comes before it. A GPU that is there and
         cannot be used is an error, and so are more ranks than GPUs. --share-gpu K makes K logical GPUs of each, each with its part of
         the memory (LOCKSTEP_GPU_MEMORY, if set, stays); on the CPU it makes K parts of the cores. --devices cpu:2x is --gpus none
         --share-gpu 2 -n 2, and --devices cuda:0:2x is --gpus 0 --share-gpu 2 -n 2. With --nnodes each node has flags of its own.
         `lockrun topology` shows what there is.

Ranks    -n gpu: one for each GPU (times --share-gpu); cpu: for each core that lockrun may use; auto: GPUs if there are any, else cores.

Tasks    --ps P --workers W: W workers, the first ranks, and P servers that hold the parameters (strategy parameter_server), of all nodes
         together. Each finds LOCKSTEP_JOB (worker, ps), LOCKSTEP_TASK_INDEX, LOCKSTEP_NUM_WORKERS and LOCKSTEP_NUM_PS as well, and its
         lines begin with "[worker:0] " or "[ps:0] ". Servers use no GPU. -n may be left out, and with --nnodes says how many run here.

Nodes    with --nnodes K run lockrun once on each of K machines, each with a --node-rank of its own and -n as it likes. Node 0's waits
         at --master-addr (one of its own addresses; IPv6 too), the others for it, up to LOCKSTEP_STORE_TIMEOUT_S (60) seconds. All
         need the same secret in LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE (`openssl rand -hex 32`). The first failure, a signal to
         any lockrun or the loss of one ends all; all name the same cause and leave with the same code (75 when a node was lost).
         As the tasks of `srun --ntasks-per-node=1` lockruns are the nodes of one job by themselves, unless told --nnodes 1.

Input    rank 0 reads lockrun's stdin when that is a file or a pipe; from a terminal, and on all other ranks, it is /dev/null.
Output   whole lines, "[rank] " in front, at once; above 16 MiB cut between characters. stdout and stderr stay apart, unless both go to one
         file. A line that ranks write within 100 ms of each other comes once, as "[0-3] " or "[0,2] ", also if it differs in 'rank R' alone
         (--no-fold). Under --no-prefix no byte is added or removed. A rank's stdout is a terminal, as under mpirun, with TERM=dumb where
         lockrun's own is none; --no-terminal makes it a pipe, into which C programs write late, and lose lines when they crash.
Failure  the first rank that fails ends the others within 2 s (SIGTERM, then SIGKILL); its last lines on stderr are repeated.
         A rank that leaves with 75 has only lost a peer and is not blamed.
Signals  Ctrl-C, SIGTERM, SIGHUP and SIGQUIT are passed on, and after 5 s followed by SIGKILL; a second one kills at once.
         SIGUSR1 asks this node's ranks for their flight records; `lockrun diagnose DIR` explains those in --flight-dir.
         SIGUSR2 and others that schedulers send are passed on to ranks with a handler for it; a line names the ranks without one.
Exit     0, or the failing rank's code; 1: the ranks' output cannot be written; 128 + N for a signal; 126 or 127: the
         program cannot be run or found; 2: a wrong flag.

Example: lockrun -n 2 build/examples/cifar10 --epochs 3
         lockrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 -n 4 build/examples/cifar10     and with --node-rank 1 elsewhere)";

// A flag as cxxopts writes it, "n,nproc-per-node": one letter or none, and its name.
struct Flag {
  const char* names;
  const char* description;
  const char* value = "";  // what the usage calls it; "": the flag takes none
};

constexpr Flag kFlags[] = {
    {"n,nproc-per-node", "how many ranks, here; or gpu, cpu (one for each), auto", "N"},
    {"ps", "how many ranks hold parameters for --workers", "P"},
    {"workers", "how many ranks compute, beside --ps", "W"},
    {"nnodes", "how many nodes (1)", "K"},
    {"standalone", "this node alone, as without the flag"},
    {"node-rank", "which of them this is, from 0", "I"},
    {"master-addr", "node 0's name or address", "A"},
    {"master-port",
     "a free port there (29500); with one node the ranks' MASTER_PORT, which is left to the program (any free one)",
     "P"},
    {"gpus", "auto, all, none, numbers (0,1) or UUIDs (GPU-8c9f)", "LIST"},
    {"share-gpu", "K ranks on one GPU, or on parts of the CPU (1)", "K"},
    {"devices", "one device as several, a rank on each: cpu:2x, cuda:0:2x, cuda:0:2x,cuda:1:2x", "LIST"},
    {"flight-dir", "where each rank writes its last operations when the job fails, and on SIGUSR1", "DIR"},
    {"no-prefix", "leave the ranks' output as it is"},
    {"no-fold", "print a line that several ranks write once for each (default: once for all, [0-3])"},
    {"no-terminal",
     "give the ranks a pipe as their stdout (default: a terminal, into which programs write line by line)"},
    {"max-restarts", "0 alone, torchrun's for a job that is not started again", "0"},
    {"no-bind", "leave the ranks on all cores (default: disjoint cores when there are enough, near the rank's GPU)"},
    {"h,help", "this text"},
    {"version", "the version"},
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

// "-n", "--nproc-per-node", "--nnodes", ...: the word behind one of them belongs to it.
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

// torchrun's users write --node_rank as well as --node-rank.
std::string with_hyphens(std::string flag) {
  const std::size_t end = flag.rfind("--", 0) == 0 ? std::min(flag.find('='), flag.size()) : 0;
  std::replace(flag.begin(), flag.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return flag;
}

// The words that are lockrun's own.
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

// The flag's value, given once or not at all.
std::optional<std::string> text_of(const cxxopts::ParseResult& parsed, const char* name, const char* shown) {
  if (parsed.count(name) > 1) throw InvalidArgument("{} is given more than once", shown);
  return parsed.count(name) == 0 ? std::nullopt : std::optional(parsed[name].as<std::string>());
}

int whole_number(const char* shown, const std::string& value, long low, long high) {
  try {
    return static_cast<int>(env::parse_integer(shown, value, low, high));
  } catch (const InvalidArgument&) {
    throw InvalidArgument("{} {}: a whole number from {} to {} is needed", shown, value, low, high);
  }
}

std::optional<int> number_of(const cxxopts::ParseResult& parsed, const char* name, const char* shown, long low,
                             long high) {
  const auto value = text_of(parsed, name, shown);
  return value ? std::optional(whole_number(shown, *value, low, high)) : std::nullopt;
}

// torchrun's "K" or "K:K"; lockrun knows no nodes that come and go.
int number_of_nodes(const cxxopts::ParseResult& parsed) {
  const std::string text = text_of(parsed, "nnodes", "--nnodes").value_or("1");
  const NodeRange range = node_range(text);
  if (range.least != range.most)
    throw InvalidArgument(
        "--nnodes {}: lockrun's nodes do not come and go; write how many there are, --nnodes K, and --node-rank I on "
        "each",
        text);
  const int nodes = whole_number("--nnodes", range.least, 1, kMaxNodes);
  if (nodes > 1 && parsed.count("standalone") > 0)
    throw InvalidArgument("--standalone is for one node, --nnodes {} for several", nodes);
  return nodes;
}

// --devices has the words of LOCKSTEP_LOGICAL_DEVICES; here each part is a rank's, and -n may be left out.
void read_devices(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  const auto text = text_of(parsed, "devices", "--devices");
  if (!text) return;
  if (parsed.count("gpus") > 0 || parsed.count("share-gpu") > 0)
    throw InvalidArgument(
        "--devices {}: it says which devices and how many ranks on each: leave out --gpus and --share-gpu", *text);
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
      throw InvalidArgument("--devices {}: as many ranks on each GPU are needed", *text);
    spec.gpus += (spec.gpus.empty() ? "" : ",") + std::to_string(gpu);
  }
  spec.ranks = spec.share_gpu * static_cast<int>(devices.splits.size());
}

// A parameter server's job. On one node it says how many ranks there are.
void read_tasks(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  spec.servers = number_of(parsed, "ps", "--ps", 0, kMaxRanks).value_or(0);
  spec.workers = number_of(parsed, "workers", "--workers", 0, kMaxRanks).value_or(0);
  if (parsed.count("ps") == 0 && parsed.count("workers") == 0) return;
  if (spec.workers == 0)
    throw InvalidArgument("--ps {} needs workers, which compute: --workers W, 1 at least", spec.servers);
  if (spec.servers == 0)
    throw InvalidArgument(
        "--workers {} needs servers, which hold the parameters: --ps P, 1 at least; for ranks without servers write -n "
        "{}",
        spec.workers, spec.workers);
  const int all = spec.servers + spec.workers;
  const auto stated = text_of(parsed, "nproc-per-node", "-n");
  if (number_of_nodes(parsed) > 1) {
    if (stated) return;
    throw InvalidArgument("--ps {} --workers {} are {} ranks on several nodes: how many here? -n N is missing",
                          spec.servers, spec.workers, all);
  }
  const bool by_devices = parsed.count("devices") > 0;
  if ((stated && *stated != std::to_string(all)) || (!stated && by_devices && spec.ranks != all))
    throw InvalidArgument("--ps {} --workers {} are {} ranks, and {} says {}: leave it out, or let it agree",
                          spec.servers, spec.workers, all, stated ? "-n" : "--devices",
                          stated ? *stated : std::to_string(spec.ranks));
  spec.ranks = all;
}

// How many ranks: a number, or torchrun's words for what there is here.
void read_ranks(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  using RanksFrom = launch::LaunchSpec::RanksFrom;
  static const std::map<std::string, RanksFrom> kWords = {
      {"auto", RanksFrom::kDevices}, {"gpu", RanksFrom::kGpus}, {"cpu", RanksFrom::kCores}};
  const auto text = text_of(parsed, "nproc-per-node", "-n");
  if (!text && spec.ranks > 0) return;  // by --devices, or --ps and --workers
  if (!text) throw InvalidArgument("how many ranks? -n N is missing");
  if (const auto word = kWords.find(*text); word != kWords.end())
    spec.ranks_from = word->second;
  else
    spec.ranks = whole_number("-n", *text, 1, kMaxRanks);
}

// One node needs none of them, and may be given them: a script need not care how many nodes it has.
void read_nodes(const cxxopts::ParseResult& parsed, launch::LaunchSpec& spec) {
  spec.nodes = number_of_nodes(parsed);
  const auto node_rank = number_of(parsed, "node-rank", "--node-rank", 0, kMaxNodes - 1);
  const auto host = text_of(parsed, "master-addr", "--master-addr");
  const auto port = number_of(parsed, "master-port", "--master-port", 1, kMaxPort);
  spec.master_port = static_cast<std::uint16_t>(port.value_or(spec.nodes == 1 ? 0 : kDefaultPort));
  if (node_rank && *node_rank >= spec.nodes)
    throw InvalidArgument("--node-rank {} does not exist with --nnodes {}: nodes count from 0", *node_rank, spec.nodes);
  if (spec.nodes == 1) return;
  if (!node_rank) throw InvalidArgument("--nnodes {}: which of them is this? --node-rank I is missing", spec.nodes);
  if (!host || host->empty())
    throw InvalidArgument("--nnodes {}: where is node 0? --master-addr A is missing", spec.nodes);
  spec.node_rank = *node_rank;
  spec.master_host =
      host->size() > 2 && host->front() == '[' && host->back() == ']' ? host->substr(1, host->size() - 2) : *host;
}

// Scripts for torchrun say that they want none.
void read_restarts(const cxxopts::ParseResult& parsed) {
  const auto restarts = text_of(parsed, "max-restarts", "--max-restarts");
  if (restarts && whole_number("--max-restarts", *restarts, 0, 1'000'000) != 0)
    throw InvalidArgument("--max-restarts {}: {}", *restarts, kNoRestarts);
}

}  // namespace

std::variant<launch::LaunchSpec, Information> parse_command_line(const std::vector<std::string>& words,
                                                                 const EnvironmentLookup& lookup) {
  cxxopts::Options options = make_options();
  const std::vector<std::string> flags = take_flags(words);
  const cxxopts::ParseResult parsed =
      parse_flags(options, with_srun_nodes(with_torchruns_variables(flags, lookup), lookup));
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
    launch::parse_gpus(spec.gpus, 1);  // here, where a fault brings the usage along
  }
  if (const auto folder = text_of(parsed, "flight-dir", "--flight-dir")) {
    if (folder->empty()) throw InvalidArgument("--flight-dir: which folder?");
    spec.flight_dir = std::filesystem::absolute(*folder).string();
  }
  spec.prefix = parsed.count("no-prefix") == 0;
  spec.fold = parsed.count("no-fold") == 0;
  spec.terminals = parsed.count("no-terminal") == 0;
  read_restarts(parsed);
  spec.bind_cores = parsed.count("no-bind") == 0;
  std::size_t program = flags.size();
  if (program < words.size() && words[program] == "--") ++program;
  spec.command.assign(words.begin() + static_cast<std::ptrdiff_t>(program), words.end());
  if (spec.command.empty()) throw InvalidArgument("which program? Its name follows the flags");
  return spec;
}

}  // namespace lockstep::launcher
