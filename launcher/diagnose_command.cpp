#include "launcher/diagnose_command.h"

#include "lockstep/core/error.h"
#include "src/diagnose/diagnose.h"
#include "src/diagnose/folder.h"
#include "src/diagnose/report.h"

namespace lockstep::launcher {

namespace {

constexpr const char* kDiagnoseHelp = R"(usage: lockrun diagnose DIR [--json]

Reads the flight records rank<R>.json in DIR and says which rank did not come to which operation, who waits for whom, where ranks make
different calls, and who keeps the others waiting. A job writes them when a group fails, and on SIGUSR1 to a rank or to lockrun, once
it has a folder for them: lockrun --flight-dir DIR, or LOCKSTEP_FLIGHT_DIR.
)";

}  // namespace

std::string diagnose_command(const std::vector<std::string>& words) {
  std::string folder;
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return kDiagnoseHelp;
    if (word == "--json")
      as_json = true;
    else if (word.size() > 1 && word[0] == '-')
      throw InvalidArgument("diagnose: there is no flag {}\n{}", word, kDiagnoseHelp);
    else if (folder.empty())
      folder = word;
    else
      throw InvalidArgument("diagnose: one folder at a time; {} and {} are given\n{}", folder, word, kDiagnoseHelp);
  }
  if (folder.empty()) throw InvalidArgument("diagnose: which folder?\n{}", kDiagnoseHelp);
  const diagnose::Records records = diagnose::read_folder(folder);
  const auto findings = diagnose::diagnose(records.dumps);
  return as_json ? diagnose::json_report(records, findings) : diagnose::text_report(records, findings);
}

}  // namespace lockstep::launcher
