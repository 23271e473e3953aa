// lockrun -n N [flags] program arguments...: see command_line.cpp for the flags and src/launch for what happens.
#include <cstdio>

#include "launcher/command_line.h"
#include "launcher/diagnose_command.h"
#include "lockstep/core/error.h"

namespace {

using namespace lockstep;

std::variant<launch::LaunchSpec, launcher::Information> parse(int argc, char** argv) {
  try {
    return launcher::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("{}\nusage: lockrun -n N [flags] program [arguments...]   (lockrun --help says more)", error.what());
  }
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "diagnose") {
    std::fputs(launcher::diagnose_command(std::vector<std::string>(argv + 2, argv + argc)).c_str(), stdout);
    return 0;
  }
  const auto decision = parse(argc, argv);
  if (const auto* spec = std::get_if<launch::LaunchSpec>(&decision)) return launch::launch(*spec);
  std::fputs(std::get<launcher::Information>(decision).text.c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("lockrun", run, argc, argv); }
