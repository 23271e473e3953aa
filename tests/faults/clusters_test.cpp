// examples/clusters/kubernetes.yaml without a cluster: its fields agree with each other, and its command runs as two
// "pods" on loopback, of which one gets SIGTERM. slurm_test runs the file for Slurm.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <memory>

#include "lockstep/core/error.h"
#include "tests/faults/hand_job.h"
#include "tests/faults/restart_job.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

std::string yaml() {
  std::ifstream file(LOCKSTEP_KUBERNETES_FILE);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first group of the only match in the file.
std::string field(const std::string& expression) {
  const auto found = find_match(yaml(), expression);
  return found.size() > 1 ? found[1] : "no match for " + expression;
}

// The container's command, as the kubelet starts it.
Words command_of_pod(int index) {
  Words words;
  std::string word;
  for (const char c : field("command: \\[([^\\]]*)\\]")) {
    if (c != ',' && c != '\n' && c != ' ' && c != '"') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(word == "$(JOB_COMPLETION_INDEX)" ? std::to_string(index) : word);
      word.clear();
    }
  }
  words.push_back(word);
  return words;
}

TEST(KubernetesFile, FieldsAgree) {
  EXPECT_EQ(field("values: \\[([0-9]+)\\]"), std::to_string(kPreemptedExitCode));
  EXPECT_LT(std::stoi(field("--grace-period, \"([0-9]+)\"")),
            std::stoi(field("terminationGracePeriodSeconds: ([0-9]+)")))
      << "Kubernetes kills lockrun, too, after this time";
  EXPECT_EQ(field("completions: ([0-9]+)"), field("--nnodes, \"([0-9]+)\""));
  EXPECT_EQ(field("completions: ([0-9]+)"), field("parallelism: ([0-9]+)"));
  EXPECT_EQ(field("master-addr, ([a-z0-9.-]+)"),
            field("kind: Job\nmetadata: \\{name: ([a-z]+)\\}") + "-0." + field("subdomain: ([a-z]+)"));
  EXPECT_EQ(field("kind: Service\nmetadata: \\{name: ([a-z]+)\\}"), field("subdomain: ([a-z]+)"));
  EXPECT_NE(yaml().find("restartPolicy: Never"), std::string::npos) << "podFailurePolicy needs it";
}

class KubernetesJob : public Restart {
 protected:
  std::unique_ptr<Child> pod(int index, const std::string& pause) const {
    Words command = command_of_pod(index);
    EXPECT_EQ(command.front(), "lockrun");
    EXPECT_EQ(command.back(), "/app/train");
    command.front() = LOCKRUN;
    command.pop_back();
    for (std::size_t i = 1; i < command.size(); ++i) {
      if (command[i - 1] == "--master-addr") command[i] = "127.0.0.1";
      if (command[i - 1] == "-n") command[i] = "1";
    }
    command.insert(command.end(),
                   {"--no-fold", "--no-prefix", "--master-port", port_, RESUME_RANK, "loop=own", "preempt=1",
                    "pause_ms=" + pause, "epochs=40", "folder=" + folder() + "/run", "losses=" + folder() + "/losses"});
    return std::make_unique<Child>(command,
                                   ChildOptions{.environment = {{"LOCKSTEP_TOKEN", "a secret of the cluster"}}});
  }
  bool makes_steps(int steps) const {
    return poll_until(
        [&] {
          std::ifstream file(folder() + "/losses");
          return std::count(std::istreambuf_iterator<char>(file), {}, '\n') >= steps;
        },
        kLong);
  }

 private:
  const std::string port_ = free_port();
};

TEST_F(KubernetesJob, APodThatHasToGoIsPreemptedWithTheOtherAndBothContinue) {
  {
    const auto first = pod(0, "50"), second = pod(1, "50");
    ASSERT_TRUE(makes_steps(3)) << first->errors() << second->errors();
    second->signal(SIGTERM);
    EXPECT_EQ(first->wait(kLong), kPreemptedExitCode) << first->errors();
    EXPECT_EQ(second->wait(kLong), kPreemptedExitCode) << second->errors();
  }
  const auto first = pod(0, "0"), second = pod(1, "0");
  EXPECT_EQ(first->wait(kLong), 0) << first->errors();
  EXPECT_EQ(second->wait(kLong), 0) << second->errors();
  EXPECT_TRUE(makes_steps(280));
  std::ifstream file(folder() + "/losses");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(file), {}, '\n'), 280) << "each step once";
}

}  // namespace
}  // namespace lockstep::testing
