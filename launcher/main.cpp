// lockrun -n N [flags] program arguments...: see command_line.cpp for the flags and src/launch for what happens.
#include <cstdio>

#include "launcher/command_line.h"
#include "launcher/report_commands.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

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
constexpr Command kCommands[] = {{"diagnose", launcher::diagnose_command}, {"topology", launcher::topology_command}};

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
