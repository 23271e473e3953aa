// A training under lockrun with a report, for tests of restarts.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

using Words = std::vector<std::string>;

inline constexpr std::chrono::seconds kLong(60);

class Restart : public ::testing::Test {
 protected:
  Restart() {
    std::string pattern = ::testing::TempDir() + "lockstep-restart-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Restart() override { std::filesystem::remove_all(folder_); }

  std::string folder() const { return folder_; }
  std::string report_file() const { return folder_ + "/report.json"; }
  nlohmann::json report() const { return nlohmann::json::parse(std::ifstream(report_file())); }

  Words training(const std::string& checkpoints, const Words& arguments) const {
    Words words = {TRAINING_RANK, "steps=23",   "save_every=5",
                   "resume=1",    "metrics=10", "folder=" + folder_ + "/" + checkpoints};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  // On one node, with these flags of lockrun.
  Words job(int ranks, const Words& flags, const Words& command) const {
    Words words = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks), "--report", report_file()};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  // The hash of rank 0's weights at the end of a training.
  static std::string weights_in(const std::string& output) {
    const std::size_t begin = output.find("weights ");
    return begin == std::string::npos ? "none: " + output : output.substr(begin, output.find('\n', begin) - begin);
  }
  std::string undisturbed_weights(int ranks) const {
    Child job(this->job(ranks, {}, training("undisturbed", {})));
    EXPECT_EQ(job.wait(kLong), 0) << job.errors();
    return weights_in(job.output());
  }

 private:
  std::string folder_;
};

}  // namespace lockstep::testing
