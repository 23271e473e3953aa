// For the tests of scripts/test-gpu and scripts/bench-gpu: functions to call them, and a fake build folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

// Hides the CUDA part if there is one.
inline const std::map<std::string, std::string> kNoGpu = {{"LOCKSTEP_CUDA_LIBRARY", "/nonexistent.so"},
                                                          {"BUILD", BUILD_FOLDER}};

inline std::vector<std::string> script(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"python3", SCRIPTS "/" + name, "--no-build"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// A build folder of programs that only print how they were called. Its lockrun shows one GPU.
class FakeBuild {
 public:
  explicit FakeBuild(const std::string& name) : folder_(::testing::TempDir() + name + std::to_string(::getpid())) {
    const std::string visible =
        R"({"gpus":[{"name":"Fake H200","uuid":"GPU-b","memory_bytes":9,"compute_capability":"9.0"}]})";
    program("launcher/lockrun", "[ \"$1\" = topology ] && { echo '" + visible + R"('; exit 0; }
echo "{\"bytes\": 4, \"p50_us\": 1, \"ranks\": $2, \"shared\": $4, \"blocking\": $LOCKSTEP_NCCL_BLOCKING}")");
  }
  ~FakeBuild() { std::filesystem::remove_all(folder_); }
  FakeBuild(const FakeBuild&) = delete;
  FakeBuild& operator=(const FakeBuild&) = delete;
  std::string program(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  const std::filesystem::path folder_;
};

}  // namespace lockstep::testing
