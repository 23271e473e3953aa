// For the tests of bench/peers: folders of programs that only record how they were called.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {

// Lines of /proc/cpuinfo.
inline const std::string kAvx2 = "flags: fpu avx2 fma",
                         kAvx512 = kAvx2 + " avx512f avx512bw avx512dq avx512vl avx512_bf16",
                         kAmx = kAvx512 + " amx_tile amx_bf16";
inline constexpr std::chrono::seconds kPeersDeadline{60};
// The variables that limit programs to an instruction set.
inline constexpr const char* kIsaVariables[] = {"LOCKSTEP_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
                                                "MKL_ENABLE_INSTRUCTIONS", "OMPI_MCA_op_avx_support"};

inline std::string text_of(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A build folder and a folder of peers, whose programs record their variables and their arguments next to themselves
// and print one row; and the processor on which they run.
class FakePeers {
 public:
  FakePeers(const std::string& name, const std::string& flags) : fake_("compare-" + name) {
    cpuinfo("processor: 0\nmodel name: Fake CPU\n" + flags + "\nprocessor: 1\nmodel name: Fake CPU\n");
    program("build/bench/train_step", R"(echo '{"step_ms": 10, "parameters": 7}')");
    program("build/bench/operators", R"(echo '{"operator": "relu", "ms": 0.002, "share_percent": 50}')");
    program("build/bench/all_reduce", R"(echo '{"bytes": 4, "p50_us": 1}')");
    program("peers/venv/bin/python", R"(echo '{"operator": "relu", "us": 4}')");
    program("peers/venv/bin/torchrun", R"(case "$*" in
*all_reduce_gloo*) echo '{"bytes": 4, "p50_us": 5}' ;;
*"--variant eager"*) echo '{"step_ms": 20, "parameters": 7}' ;;
*"--variant compile"*) echo '{"step_ms": 15, "parameters": 7}' ;;
*) echo '{"step_ms": 5, "parameters": 7}' ;;
esac)");
    program("peers/all_reduce_mpi", "");
    program("path/mpirun", R"(echo '{"bytes": 4, "p50_us": 2}')");
    std::filesystem::create_directories(folder() / "peers/venv/lib/python3.11/site-packages/torch-9.8.7.dist-info");
  }
  const std::filesystem::path& folder() const { return fake_.folder(); }
  void cpuinfo(const std::string& text) const { std::ofstream(folder() / "cpuinfo") << text; }
  void program(const std::string& name, const std::string& text) const {
    fake_.program(name, R"(env > "$0.env"; echo "$*" >> "$0.calls"
)" + text);
  }
  std::string calls(const std::string& program) const { return text_of(folder() / (program + ".calls")); }
  // Those of kIsaVariables with which a program was called last.
  std::map<std::string, std::string> limits(const std::string& program) const {
    std::map<std::string, std::string> found;
    for (const std::string& line : lines_of(text_of(folder() / (program + ".env"))))
      for (const char* name : kIsaVariables)
        if (line.rfind(std::string(name) + "=", 0) == 0) found[name] = line.substr(std::string(name).size() + 1);
    return found;
  }
  ChildOptions options(const std::map<std::string, std::string>& more = {}) const {
    ChildOptions options{.environment = {{"PEERS_BUILD", (folder() / "peers").string()},
                                         {"PEERS_CPUINFO", (folder() / "cpuinfo").string()},
                                         {"PATH", (folder() / "path").string() + ":" + std::getenv("PATH")}}};
    for (const char* name : kIsaVariables)
      if (more.count(name) == 0) options.unset.push_back(name);
    for (const auto& [name, value] : more) options.environment[name] = value;
    return options;
  }
  std::unique_ptr<Child> compare(const std::vector<std::string>& flags,
                                 const std::map<std::string, std::string>& more = {}) const {
    std::vector<std::string> command = {"python3", PEERS "/compare"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"--rounds", "1", "--build", (folder() / "build").string()});
    return std::make_unique<Child>(command, options(more));
  }

 private:
  FakeBuild fake_;
};

}  // namespace lockstep::testing
