// A job for a row of docs/troubleshooting.md: a training with checkpoints in which a rank goes wrong, and the checks of
// the row: limit, exit code, messages, and nothing that is left. A test finds its row by its own name.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/faults/fault_table.h"
#include "tests/faults/hand_job.h"
#include "tests/faults/things_left.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {

using FaultClock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

std::vector<FaultRow> all_fault_rows();

class FaultTable : public ::testing::Test {
 protected:
  FaultTable();
  ~FaultTable() override;
  void SetUp() override { ASSERT_NE(row_.test, "") << "docs/troubleshooting.md has no row for this test"; }

  std::string checkpoints() const { return folder_ + "/checkpoints"; }
  std::string stamp() const { return folder_ + "/stamp"; }

  // An endless training that saves every ten steps.
  Words training(const Words& arguments) const;
  Words under_lockrun(int ranks, const Words& arguments) const;
  // Rank 1 of 3 fails in its 26th step; the checkpoint of the 20th exists, and none is being written.
  Words one_goes_wrong(const std::string& how) const {
    return under_lockrun(3, {"fail_rank=1", "fail_at=25", "how=" + how});
  }

  // Returns when a rank reports its failure; waits for that as long as the job lives.
  FaultClock::time_point moment_of_fault(const Child& job) const;
  void await_training(const Child& job, const std::string& rank = "0") const;
  std::chrono::milliseconds limit() const;

  // The job must end in time after that moment, with the row's code.
  void expect_end(Child& job, FaultClock::time_point fault);
  void expect_code(const Child& job, int code, FaultClock::time_point fault);
  void expect_messages(const Child& job) const;
  void expect_nothing_left(const std::vector<const Child*>& jobs, bool killed_amid_saving = false) const;
  void show_seen() const;
  // All checks, for a job under one lockrun whose rank fails by itself.
  void expect_row(Child& job);
  // All checks, for a training that saves on a disk with room for two checkpoints, not for three.
  void expect_full_disk(const Words& how);

  // The job must train again in time after that moment: that rank has made the first step of a second attempt. Then it
  // must end with the row's code.
  void expect_restart(Child& job, FaultClock::time_point fault, const std::string& rank);

  std::string folder_;
  ThingsLeft left_;
  FaultRow row_;
  double seen_ = 0;
};

inline const ChildOptions kShortDeadline{.environment = {{"LOCKSTEP_TIMEOUT_S", "3"}}};
inline const Environment kShortStall = {{"LOCKSTEP_STALL_TIMEOUT_S", "3"}};

}  // namespace lockstep::testing
