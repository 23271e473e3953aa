#include "tests/slurm/slurm_lab.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/support/temporary.h"

namespace lockstep::testing {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

constexpr seconds kPatience(60);

bool is_installed(const char* program) {
  return std::system(fmt::format("command -v {} >/dev/null", program).c_str()) == 0;
}

// 22.05 has no setting for "without control groups"; naming a version that is then not used has the same effect.
const char* control_groups() {
  return std::system("slurmd -V | grep -qE '^slurm-wlm 2[0-2]\\.|^slurm 2[0-2]\\.'") == 0 ? "CgroupPlugin=cgroup/v1\n"
                                                                                          : "CgroupPlugin=disabled\n";
}

// {0} is the folder, {1} and {2} are the nodes' addresses. A process that ignores scancel gets SIGKILL after 5 s. A job
// that is queued again begins when its old credential has expired: cred_expire instead of 2 minutes.
constexpr const char* kConfiguration = R"(
ClusterName=lab
SlurmctldHost=n0({1})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={0}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={0}/state
SlurmdSpoolDir={0}/spool-%n
SlurmctldPidFile={0}/slurmctld.pid
SlurmdPidFile={0}/slurmd-%n.pid
SlurmctldLogFile={0}/slurmctld.log
SlurmdLogFile={0}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=5
NodeName=n0 NodeAddr={1} CPUs=8 State=UNKNOWN
NodeName=n1 NodeAddr={2} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
)";

}  // namespace

std::string SlurmLab::obstacle() {
  if (::geteuid() != 0) return "Slurm's daemons and their namespaces take root";
  for (const char* program : {"slurmctld", "slurmd", "munged", "srun", "unshare", "nsenter", "setpriv"})
    if (!is_installed(program)) return fmt::format("there is no `{}` (apt-get install slurm-wlm munge)", program);
  return NetworkLab::obstacle();
}

SlurmLab::SlurmLab() : folder_(temporary("slurm")) {
  write_configuration();
  daemons_.emplace_back(
      std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "munged", "--foreground", "--force",
                               "--key-file=" + folder_ + "/munge.key", "--socket=" + folder_ + "/munge.socket",
                               "--pid-file=" + folder_ + "/munge.pid", "--log-file=" + folder_ + "/munge.log",
                               "--seed-file=" + folder_ + "/munge.seed"},
      ChildOptions{});
  if (!poll_until([&] { return fs::exists(folder_ + "/munge.socket"); }, kPatience))
    throw std::runtime_error("munged did not start: " + daemons_[0].errors());
  start_daemon(0, "slurmctld -D -i");
  start_daemon(0, "slurmd -D");
  start_daemon(1, "slurmd -D");
  if (becomes_idle()) return;
  std::string trouble = "Slurm did not start:";
  for (const Child& daemon : daemons_) trouble += "\n" + daemon.errors();
  throw std::runtime_error(trouble);
}

SlurmLab::~SlurmLab() {
  while (!daemons_.empty()) daemons_.pop_back();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void SlurmLab::write_configuration() const {
  for (const char* folder : {"", "/state", "/spool-n0", "/spool-n1"}) fs::create_directory(folder_ + folder);
  fs::permissions(folder_, fs::perms(0755));
  {
    std::ifstream random("/dev/urandom", std::ios::binary);
    std::string key(128, '\0');
    random.read(key.data(), static_cast<std::streamsize>(key.size()));
    std::ofstream(folder_ + "/munge.key", std::ios::binary) << key;
    fs::permissions(folder_ + "/munge.key", fs::perms(0600));
  }
  std::ofstream(folder_ + "/slurm.conf") << fmt::format(kConfiguration, folder_, NetworkLab::address(0),
                                                        NetworkLab::address(1));
  std::ofstream(folder_ + "/cgroup.conf") << control_groups();
  for (const int node : {0, 1})
    std::ofstream(fmt::format("{}/hosts-{}", folder_, node))
        << fmt::format("127.0.0.1 localhost\n127.0.1.1 n{}\n{} n{}\n", node, NetworkLab::address(1 - node), 1 - node);
}

void SlurmLab::start_daemon(int node, const std::string& command) {
  const std::string script =
      fmt::format("hostname n{0} && mount --bind {1}/hosts-{0} /etc/hosts && exec {2}", node, folder_, command);
  ChildOptions options = options_of({});
  options.network = network_.network(node);
  daemons_.emplace_back(
      std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "unshare", "--uts", "--mount", "sh", "-c", script},
      options);
}

ChildOptions SlurmLab::options_of(Environment environment) const {
  environment["SLURM_CONF"] = folder_ + "/slurm.conf";
  return {.environment = std::move(environment)};
}

std::vector<std::string> SlurmLab::on_node_zero(const std::vector<std::string>& command) const {
  std::vector<std::string> words = {"nsenter", "--target", std::to_string(daemons_[2].pid()), "--net", "--uts",
                                    "--mount", "--wd=/"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string SlurmLab::ask(const std::vector<std::string>& command) const {
  Child child(on_node_zero(command), options_of({}));
  child.wait(kPatience);
  return child.output();
}

bool SlurmLab::becomes_idle() const {
  return poll_until(
      [&] {
        return ask({"squeue", "-h"}).empty() && ask({"sinfo", "-h", "-o", "%T %D"}) == "idle 2\n";
      },
      kPatience);
}

}  // namespace lockstep::testing
