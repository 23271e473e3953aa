#include "src/diagnose/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::diagnose {

namespace {

using Json = nlohmann::ordered_json;

std::vector<int> missing_ranks(const std::vector<FlightDump>& dumps) {
  std::set<int> present;
  for (const FlightDump& dump : dumps) present.insert(dump.rank);
  std::vector<int> missing;
  for (int rank = 0; rank < dumps.front().world_size; ++rank)
    if (present.count(rank) == 0) missing.push_back(rank);
  return missing;
}

std::string header(const std::vector<FlightDump>& dumps) {
  const FlightDump& first = dumps.front();
  std::set<std::string> hosts;
  for (const FlightDump& dump : dumps) hosts.insert(dump.host);
  const std::vector<int> missing = missing_ranks(dumps);
  std::string text = fmt::format("{} of {} ranks left a record, on {} host{}", dumps.size(), first.world_size,
                                 hosts.size(), hosts.size() == 1 ? "" : "s");
  if (!missing.empty()) text += fmt::format("; none from {}", name_ranks(missing));
  return text + "\n";
}

}  // namespace

std::string text_report(const Records& records, const std::vector<Finding>& findings) {
  std::string text = header(records.dumps);
  for (const Finding& finding : findings) text += fmt::format("- {}\n", finding.text);
  for (const std::string& sentence : records.ignored) text += fmt::format("- {}\n", sentence);
  return text;
}

std::string json_report(const Records& records, const std::vector<Finding>& findings) {
  const FlightDump& first = records.dumps.front();
  Json json{{"job", first.job},       {"world_size", first.world_size}, {"missing", missing_ranks(records.dumps)},
            {"ranks", Json::array()}, {"findings", Json::array()},      {"ignored", records.ignored}};
  for (const FlightDump& dump : records.dumps)
    json["ranks"].push_back({{"rank", dump.rank},
                             {"host", dump.host},
                             {"pid", dump.pid},
                             {"reason", dump.reason},
                             {"written_ns", dump.written_ns}});
  for (const Finding& finding : findings) {
    Json each{{"kind", name_of(finding.kind)}, {"text", finding.text},   {"group", finding.group},
              {"sequence", finding.sequence},  {"ranks", finding.ranks}, {"waiting", finding.waiting},
              {"seconds", finding.seconds},    {"sides", Json::array()}};
    for (const Finding::Side& side : finding.sides)
      each["sides"].push_back({{"what", side.what}, {"ranks", side.ranks}});
    json["findings"].push_back(std::move(each));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::diagnose
