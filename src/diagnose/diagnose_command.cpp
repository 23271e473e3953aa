#include "src/diagnose/diagnose_command.h"

#include "lockstep/core/error.h"
#include "src/diagnose/diagnose.h"
#include "src/diagnose/record_folder.h"
#include "src/diagnose/report.h"

namespace lockstep::diagnose {

namespace {

constexpr const char* kDiagnoseHelp = R"(usage: lockrun diagnose DIR [--json]

Reads the flight records rank<R>.json in DIR and reports which rank did not arrive at which operation, which ranks wait for which, where
ranks make different calls, and which rank keeps the others waiting. A job writes them when a group fails, and on SIGUSR1 to a rank or
to lockrun, if it has a folder for them: lockrun --flight-dir DIR, or LOCKSTEP_FLIGHT_DIR.
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
      throw InvalidArgument("diagnose: unknown flag {}\n{}", word, kDiagnoseHelp);
    else if (folder.empty())
      folder = word;
    else
      throw InvalidArgument("diagnose: expected one folder, got {} and {}\n{}", folder, word, kDiagnoseHelp);
  }
  if (folder.empty()) throw InvalidArgument("diagnose: the folder is missing\n{}", kDiagnoseHelp);
  const Records records = read_folder(folder);
  const auto findings = diagnose(records.dumps);
  return as_json ? json_report(records, findings) : text_report(records, findings);
}

}  // namespace lockstep::diagnose
