// lockrun -n N [flags] program arguments...: command_line.cpp has the flags, src/launch the work.
#include <cstdio>

#include "launcher/command_line.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/diagnose/diagnose_command.h"
#include "src/launch/topology/topology_command.h"

namespace {

using namespace lockstep;

std::variant<launch::LaunchSpec, launcher::Information> parse(int argc, char** argv) {
  try {
    return launcher::parse_command_line(std::vector<std::string>(argv + 1, argv + argc), env::text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("{}\nusage: lockrun -n N [flags] program [arguments...]   (lockrun --help says more)",
                          error.what());
  }
}

struct Command {
  const char* name;
  std::string (*report)(const std::vector<std::string>& words);
};
constexpr Command kCommands[] = {{"diagnose", diagnose::diagnose_command}, {"topology", launch::topology_command}};

int run(int argc, char** argv) {
  for (const Command& command : kCommands) {
    if (argc < 2 || std::string(argv[1]) != command.name) continue;
    std::fputs(command.report(std::vector<std::string>(argv + 2, argv + argc)).c_str(), stdout);
    return 0;
  }
  const auto decision = parse(argc, argv);
  if (const auto* spec = std::get_if<launch::LaunchSpec>(&decision)) return launch::launch(*spec);
  std::fputs(std::get<launcher::Information>(decision).text.c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("lockrun", run, argc, argv); }
