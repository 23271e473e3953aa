#include "bench/lib/settings.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cxxopts.hpp>
#include <filesystem>
#include <optional>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

using Flags = cxxopts::ParseResult;

cxxopts::Options describe_flags(Program program, const std::string& name) {
  const auto text = [](const char* value) { return cxxopts::value<std::string>()->default_value(value); };
  const bool collective = program == Program::kCollective;
  cxxopts::Options options(name,
                           "Time of a collective by message size. The columns are explained in docs/benchmarks.md.\n");
  options.custom_help("[flags] [RESULT.json ...]").positional_help("");
  options.add_options("What")(
      "op",
      collective ? "the collective: " + collective_names() : "the reduction: sum, avg, product, min, max, bit_and, ...",
      text(collective ? "all_reduce" : "sum"))(
      "redop", collective ? "the reduction: sum, avg, product, min, max, bit_and, ..." : "the same as --op", text(""))(
      "dtype", "float32, float64, float16, bfloat16, int8, uint8, int32, int64", text("float32"))(
      "root", "the root of reduce, broadcast, gather, scatter", cxxopts::value<int>()->default_value("0"))(
      "b,begin", "smallest message; K, M and G are binary", text("4"))("e,end", "largest message", text("64M"))(
      "f,factor", "factor from one size to the next", cxxopts::value<std::size_t>()->default_value("4"))(
      "in-place", "one buffer for both sides (the default of all_reduce)")("out-of-place", "two buffers")(
      "plain", "ordinary memory instead of registered")(
      "check", "check every element of the last round, not only the ends of each part")(
      "rounds", "timed rounds per size (0: depends on the size); with --compare: rounds of all programs (0: 7)",
      cxxopts::value<std::size_t>()->default_value("0"));
  options.add_options("Where")("ranks", "processes to start (2); a launcher's ranks are used as they are",
                               cxxopts::value<int>())(
      "nodes", "act as if the ranks ran on that many machines, neighbours together",
      cxxopts::value<int>()->default_value("1"))("device", "where the data lies: cpu, cuda or cuda:N", text("cpu"))(
      "backend", "host, mpi or nccl; default: LOCKSTEP_BACKEND, else host", text(""))(
      "transport", "auto, shm, tcp or hierarchical", text(""));
  options.add_options("Instead of the table")(
      "overlap", "a matrix product and an all-reduce of the size of -e, alone and together")(
      "compare",
      "alternate with the peers' programs that bench/peers/setup installs: openmpi,gloo; tcp: with this program over "
      "TCP "
      "alone",
      cxxopts::value<std::vector<std::string>>()->implicit_value("openmpi,gloo"))(
      "tune", "measure the paths through shared memory and write the table that LOCKSTEP_TUNING loads to this file",
      text(""));
  options.add_options("Results")("json", "JSON lines")("json-file", "results and environment as one JSON file",
                                                       text(""))(
      "plot", "SVG of time by size; with result files as arguments it shows these and measures nothing", text(""))(
      "h,help", "this")("result-files", "", cxxopts::value<std::vector<std::string>>());
  options.parse_positional({"result-files"});
  return options;
}

template <typename Enum> std::optional<Enum> find_name(const std::string& name, int values) {
  for (int value = 0; value < values; ++value)
    if (name_of(static_cast<Enum>(value)) == name) return static_cast<Enum>(value);
  return std::nullopt;
}

DType parse_dtype(const std::string& name) {
  const auto dtype = find_name<DType>(name, static_cast<int>(DType::kInt64) + 1);
  if (!dtype) throw InvalidArgument("--dtype: '{}' is not an element type; see --help", name);
  return *dtype;
}

ReduceOp parse_reduction(const char* flag, const std::string& name) {
  if (const auto op = find_name<ReduceOp>(name, kReduceOps)) return *op;
  std::string names;
  for (int value = 0; value < kReduceOps; ++value)
    names += (value == 0 ? "" : ", ") + std::string(name_of(static_cast<ReduceOp>(value)));
  throw InvalidArgument("{}: '{}' is not a reduction; expected one of {}", flag, name, names);
}

bool is_floating(DType dtype) { return name_of(dtype).find("float") != std::string_view::npos; }

// The group rejects these as well; here they are rejected once, before ranks are started.
void check_reduction(const MeasureOptions& measure) {
  const bool bits =
      measure.op == ReduceOp::kBitAnd || measure.op == ReduceOp::kBitOr || measure.op == ReduceOp::kBitXor;
  if (measure.kind->reduces && bits && is_floating(measure.dtype))
    throw InvalidArgument("{} of {}: bitwise reductions need integers; choose an integer type with --dtype",
                          name_of(measure.op), name_of(measure.dtype));
  const bool fractions = measure.op == ReduceOp::kAvg || measure.op == ReduceOp::kPremulSum;
  if (measure.kind->reduces && fractions && !is_floating(measure.dtype))
    throw InvalidArgument("{} of {}: this reduction needs floating point; choose such a type with --dtype",
                          name_of(measure.op), name_of(measure.dtype));
}

MeasureOptions read_measure(Program program, const Flags& flags) {
  MeasureOptions measure;
  const std::string op = flags["op"].as<std::string>(), redop = flags["redop"].as<std::string>();
  const bool collective = program == Program::kCollective;
  measure.kind = &find_collective(collective ? op : "all_reduce");
  if (!redop.empty())
    measure.op = parse_reduction("--redop", redop);
  else if (!collective)
    measure.op = parse_reduction("--op", op);
  if (!collective && !redop.empty() && flags.count("op") != 0 && op != redop)
    throw InvalidArgument("--op {} and --redop {} disagree: here they mean the same, so pass only one", op, redop);
  if (!measure.kind->reduces && !redop.empty())
    throw InvalidArgument("--redop {}: {} reduces nothing", redop, measure.kind->name);
  if (!measure.kind->has_root && flags.count("root") != 0)
    throw InvalidArgument("--root: {} has no root", measure.kind->name);
  measure.dtype = parse_dtype(flags["dtype"].as<std::string>());
  check_reduction(measure);
  measure.root = flags["root"].as<int>();
  const bool in_place = flags.count("in-place") != 0, apart = flags.count("out-of-place") != 0;
  if (in_place && apart) throw InvalidArgument("--in-place and --out-of-place exclude each other");
  if (apart && measure.kind->always_in_place)
    throw InvalidArgument("--out-of-place: {} has only one buffer", measure.kind->name);
  measure.in_place =
      in_place || (!apart && std::string_view(measure.kind->name) == "all_reduce") || measure.kind->always_in_place;
  measure.plain = flags.count("plain") != 0;
  measure.check = flags.count("check") != 0;
  measure.rounds = flags["rounds"].as<std::size_t>();
  return measure;
}

std::vector<std::size_t> read_sizes(const Flags& flags, const CollectiveKind& kind) {
  const std::size_t factor = flags["factor"].as<std::size_t>();
  const std::size_t begin = parse_bytes("-b", flags["begin"].as<std::string>()),
                    end = parse_bytes("-e", flags["end"].as<std::string>());
  if (factor < 2) throw InvalidArgument("-f {}: the factor must be at least 2", factor);
  if (begin == 0 || end < begin) throw InvalidArgument("-b {} -e {}: 0 < -b <= -e is needed", begin, end);
  if (!kind.moves_data()) return {0};
  std::vector<std::size_t> sizes = {begin};
  while (sizes.back() <= end / factor) sizes.push_back(sizes.back() * factor);
  return sizes;
}

// The number of ranks that a launcher has started, if one has: from the same variables as launch::spawn.
std::optional<int> launchers_ranks() {
  if (!env::text(env::kRank) && !env::text("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  return read_job_environment([](const char* name) { return env::text(name); }).place.world_size;
}

int read_ranks(const Flags& flags) {
  const std::optional<int> launched = launchers_ranks();
  const int asked = flags.count("ranks") != 0 ? flags["ranks"].as<int>() : launched.value_or(2);
  if (asked < 1) throw InvalidArgument("--ranks {}: at least 1 is needed", asked);
  if (launched && *launched != asked)
    throw InvalidArgument("--ranks {}, but the launcher has started {}: leave --ranks out, or make them agree", asked,
                          *launched);
  return asked;
}

// Checked before minutes are spent on results that could not be saved.
void check_writable(const char* flag, const std::string& file) {
  if (file.empty()) return;
  const auto folder = std::filesystem::absolute(file).parent_path();
  const bool exists = ::access(file.c_str(), F_OK) == 0;
  if (std::filesystem::is_directory(file) || ::access(exists ? file.c_str() : folder.c_str(), W_OK) != 0)
    throw InvalidArgument("{} {}: cannot be written", flag, file);
}

void check_tuning(Program program, const Settings& settings) {
  if (program != Program::kAllReduce) throw InvalidArgument("--tune is a flag of all_reduce");
  if (settings.overlap || !settings.compare.empty() || !settings.plot_file.empty() || !settings.json_file.empty())
    throw InvalidArgument("--tune chooses what it measures: leave --overlap, --compare, --plot and --json-file out");
  if (!settings.transport.empty() || !settings.backend.empty())
    throw InvalidArgument("--tune needs backend host over shared memory: leave --backend and --transport out");
}

void check_combination(Program program, const Settings& settings) {
  const MeasureOptions& measure = settings.measure;
  if (settings.plot_file.empty() && !settings.result_files.empty())
    throw InvalidArgument("'{}': only --plot takes result files", settings.result_files.front());
  if (settings.overlap && std::string_view(measure.kind->name) != "all_reduce")
    throw InvalidArgument("--overlap is for all_reduce, not for {}", measure.kind->name);
  if (settings.overlap && !settings.plot_file.empty())
    throw InvalidArgument("--overlap has no curve: leave --plot out");
  if (!measure.kind->moves_data() && !settings.plot_file.empty())
    throw InvalidArgument("--plot: {} has one size, no curve", measure.kind->name);
  if (measure.device != DeviceKind::kCpu &&
      (settings.overlap || !settings.tune_file.empty() || !settings.compare.empty()))
    throw InvalidArgument("--overlap, --tune and --compare are for the CPU: leave --device out");
  if (!settings.tune_file.empty()) check_tuning(program, settings);
  if (settings.compare.empty()) return;
  if (std::string_view(measure.kind->name) != "all_reduce" || measure.dtype != DType::kFloat32 ||
      measure.op != ReduceOp::kSum || !measure.in_place)
    throw InvalidArgument(
        "--compare: the peers' programs time a float32 sum, an all_reduce in place; leave other flags out");
  if (settings.overlap || !settings.plot_file.empty() || !settings.json_file.empty())
    throw InvalidArgument(
        "--compare prints ratios only: it goes with --json, not with --overlap, --plot or --json-file");
  if (launchers_ranks()) throw InvalidArgument("--compare starts all programs itself: run it without a launcher");
}

}  // namespace

Settings parse_settings(Program program, int argc, char** argv) {
  Settings settings;
  settings.program = program == Program::kAllReduce ? "all_reduce" : "collective";
  auto options = describe_flags(program, settings.program);
  try {
    const Flags flags = lockstep::examples::parse_naming_flags(options, argc, argv);
    if (flags.count("help") != 0) {
      std::puts(options.help({"What", "Where", "Instead of the table", "Results"}).c_str());
      std::exit(0);
    }
    settings.measure = read_measure(program, flags);
    settings.measure.device = choose_device(flags["device"].as<std::string>());
    settings.ranks = read_ranks(flags);
    settings.nodes = flags["nodes"].as<int>();
    settings.sizes = read_sizes(flags, *settings.measure.kind);
    settings.backend = flags["backend"].as<std::string>();
    settings.transport = flags["transport"].as<std::string>();
    settings.json = flags.count("json") != 0;
    settings.overlap = flags.count("overlap") != 0;
    if (flags.count("compare") != 0) settings.compare = flags["compare"].as<std::vector<std::string>>();
    settings.json_file = flags["json-file"].as<std::string>();
    settings.plot_file = flags["plot"].as<std::string>();
    settings.tune_file = flags["tune"].as<std::string>();
    if (flags.count("result-files") != 0) settings.result_files = flags["result-files"].as<std::vector<std::string>>();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // the parser's own, whose name depends on its version
    throw InvalidArgument("{}; see --help", error.what());
  }
  if (settings.measure.kind->has_root && (settings.measure.root < 0 || settings.measure.root >= settings.ranks))
    throw InvalidArgument("--root {}: the ranks are 0 to {}", settings.measure.root, settings.ranks - 1);
  if (settings.measure.kind->pairs && settings.ranks < 2)
    throw InvalidArgument("--ranks 1: {} takes two", settings.measure.kind->name);
  if (settings.nodes < 1 || settings.nodes > settings.ranks)
    throw InvalidArgument("--nodes {}: from 1 to {}, the number of ranks", settings.nodes, settings.ranks);
  check_writable("--json-file", settings.json_file);
  check_writable("--plot", settings.plot_file);
  check_writable("--tune", settings.tune_file);
  check_combination(program, settings);
  return settings;
}

}  // namespace lockstep::bench
