// The replacement for machine_hwloc.cpp in builds without hwloc.
#include "src/launch/topology/machine.h"

namespace lockstep::launch {

namespace {

class UnknownMachine : public Machine {
 public:
  std::string unknown_because() const override { return "this build has no hwloc (libhwloc-dev, -Dhwloc=enabled)"; }
  std::vector<NumaNode> nodes() const override { return {}; }
  NearDevice near(const std::string&) const override { return {}; }
  Path path(const std::string&, const std::string&) const override { return Path::kUnknown; }
  std::optional<std::size_t> nvlink_mb(const std::string&, const std::string&) const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<Machine> read_machine(const std::string&, bool) { return std::make_unique<UnknownMachine>(); }

}  // namespace lockstep::launch
