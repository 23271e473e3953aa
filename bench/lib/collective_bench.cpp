#include "bench/lib/collective_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "bench/lib/environment_report.h"
#include "bench/lib/overlap.h"
#include "bench/lib/result_plot.h"
#include "bench/lib/result_report.h"
#include "bench/lib/tune.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/launch.h"

namespace lockstep::bench {

namespace {

using Json = nlohmann::ordered_json;

std::string place_of(ProcessGroup& group, DeviceKind device) {
  const Backend& backend = group.backend(device);
  return fmt::format("{} rank{}, {} over {}", group.world_size(), group.world_size() == 1 ? "" : "s", backend.name(),
                     backend.transport());
}

// Sizes that round to the same message are measured once.
std::vector<std::size_t> distinct_sizes(const Settings& settings, int ranks) {
  std::vector<std::size_t> distinct;
  std::size_t last = 0;
  for (const std::size_t bytes : settings.sizes) {
    const MessageLayout layout =
        layout_of(*settings.measure.kind, bytes, settings.measure.dtype, ranks, settings.measure.in_place);
    if (distinct.empty() || layout.message_bytes() != last) distinct.push_back(bytes);
    last = layout.message_bytes();
  }
  return distinct;
}

// Adds rows, the fit and the check's result to the document.
int run_table(const std::shared_ptr<ProcessGroup>& group, const Settings& settings, Json& document) {
  Measurement measurement(group, settings.measure, settings.sizes.back());
  std::optional<ResultReport> report;
  if (group->rank() == 0) report.emplace(settings, group->world_size(), place_of(*group, settings.measure.device));
  std::int64_t wrong = 0;
  for (const std::size_t bytes : distinct_sizes(settings, group->world_size())) {
    const Row row = measurement.measure(bytes);
    wrong += row.wrong;
    if (report) report->add(row);
  }
  if (report) {
    report->finish();
    document["rows"] = report->rows();
    document.update(report->summary());
  }
  return wrong == 0 ? 0 : 1;
}

int run_overlap(const std::shared_ptr<ProcessGroup>& group, const Settings& settings, Json& document) {
  const Overlap overlap = measure_overlap(group, settings.measure, settings.sizes.back());
  if (group->rank() != 0) return 0;
  document["overlap"] = overlap_as_json(overlap);
  if (settings.json)
    fmt::print("{}\n", Json{{"overlap", document["overlap"]}}.dump());
  else
    print_overlap(overlap);
  return 0;
}

// Neighbouring ranks share a node.
void choose_node(const Settings& settings) {
  if (settings.nodes == 1) return;
  const JobEnvironment job = read_job_environment([](const char* name) { return env::text(name); });
  ::setenv(env::kNode, std::to_string(job.place.rank * settings.nodes / job.place.world_size).c_str(), 1);
}

int run_rank(const Settings& settings) {
  choose_node(settings);
  const auto group = init_process_group({.backend = settings.backend, .transport = settings.transport});
  Json document = {{"program", settings.program},
                   {"environment", describe_environment(*group)},
                   {"settings", settings_as_json(settings)}};
  const int code = settings.overlap ? run_overlap(group, settings, document) : run_table(group, settings, document);
  if (group->rank() == 0 && !settings.json_file.empty()) write_document(settings.json_file, document);
  if (group->rank() == 0 && !settings.plot_file.empty())
    plot_results({{place_of(*group, settings.measure.device), document}}, settings.plot_file);
  if (code != 0 && group->rank() == 0) fmt::print(stderr, "{}: results are wrong, see #wrong\n", settings.program);
  group->barrier();  // otherwise a rank that exits with an error ends the job before rank 0 has written its results
  return code;
}

// Runs bench/peers/compare, which runs this program and the peers' in turn. Only returns by an exception.
[[noreturn]] void run_compare(const Settings& settings) {
  const std::string script = std::string(LOCKSTEP_BENCH_FOLDER) + "/peers/compare";
  std::vector<std::string> words = {script,      "all_reduce",
                                    "--program", std::filesystem::read_symlink("/proc/self/exe"),
                                    "--ranks",   std::to_string(settings.ranks)};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  if (settings.measure.rounds != 0) add("--rounds", std::to_string(settings.measure.rounds));
  add("--transport", settings.transport);
  add("--backend", settings.backend);
  if (settings.nodes != 1) add("--nodes", std::to_string(settings.nodes));
  if (settings.measure.plain) words.emplace_back("--plain");
  if (settings.json) words.emplace_back("--json");
  words.emplace_back("--peers");
  words.insert(words.end(), settings.compare.begin(), settings.compare.end());
  words.emplace_back("--sizes");
  std::transform(settings.sizes.begin(), settings.sizes.end(), std::back_inserter(words),
                 [](std::size_t bytes) { return std::to_string(bytes); });
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(script.c_str(), arguments.data());
  throw Error("--compare: cannot run {}: {}; it needs the source tree that this program was built from, and Python 3",
              script, std::strerror(errno));
}

}  // namespace

int collective_main(Program program, int argc, char** argv) {
  const Settings settings = parse_settings(program, argc, argv);
  if (!settings.compare.empty()) run_compare(settings);
  if (!settings.result_files.empty()) {
    plot_results(read_results(settings.result_files), settings.plot_file);
    return 0;
  }
  ::setenv("OMP_NUM_THREADS", "1", 0);  // --overlap's product computes on one thread
  return launch::spawn(settings.ranks, argc, argv, [&](int, char**) {
    return settings.tune_file.empty() ? run_rank(settings) : tune(settings.tune_file);
  });
}

}  // namespace lockstep::bench
