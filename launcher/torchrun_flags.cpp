#include "launcher/torchrun_flags.h"

#include <algorithm>
#include <initializer_list>

namespace lockstep::launcher {

namespace {

struct Advice {
  std::initializer_list<const char*> flags;
  const char* text;
};

constexpr const char* kRendezvous =
    "lockrun has one rendezvous, which needs no server: on each of K machines write --nnodes K --node-rank I "
    "--master-addr HOST --master-port PORT; for one machine omit the flag";
constexpr const char* kOutput =
    "lockrun prints all output of the ranks, with the rank in front of each line: omit the flag and redirect lockrun "
    "itself (> FILE 2>&1)";
constexpr const char* kAnyProgram =
    "lockrun starts any program by its name, without an interpreter: write what a shell would (python3 -m MODULE)";
constexpr const char* kNothingToChoose = "lockrun has no such choice: omit the flag";

const Advice kAdvice[] = {
    {{"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"}, kRendezvous},
    {{"--log-dir", "--redirects", "-r", "--tee", "-t", "--local-ranks-filter", "--duplicate-stdout-filters",
      "--duplicate-stderr-filters", "--logs-specs"},
     kOutput},
    {{"-m", "--module", "--no-python", "--run-path"}, kAnyProgram},
    {{"--local-addr"}, "set LOCKSTEP_INTERFACE to the interface or address by which the other machines reach this one"},
    {{"--numa-binding"}, "lockrun binds ranks to cores and memory near their GPU by itself (--no-bind disables that)"},
    {{"--monitor-interval", "--start-method", "--role", "--event-log-handler", "--signals-to-handle",
      "--virtual-local-rank", "--shutdown-timeout"},
     kNothingToChoose},
    {{"-np", "-N"}, "write -n N"},
};

}  // namespace

std::optional<std::string> advice_on_torchruns_flag(const std::string& flag) {
  for (const Advice& advice : kAdvice)
    if (std::find(advice.flags.begin(), advice.flags.end(), flag) != advice.flags.end())
      return flag + ": " + advice.text;
  return std::nullopt;
}

}  // namespace lockstep::launcher
