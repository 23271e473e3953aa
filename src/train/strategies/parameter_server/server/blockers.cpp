#include "src/train/strategies/parameter_server/server/blockers.h"

#include <algorithm>
#include <limits>

namespace lockstep::train {

std::int64_t slowest_of(const std::vector<ParameterClient>& clients) {
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
  for (const ParameterClient& client : clients)
    if (client.is_active()) slowest = std::min(slowest, client.clock);
  return slowest;
}

std::vector<std::size_t> blockers_of(std::size_t waiting, const std::vector<ParameterClient>& clients,
                                     const BlockingRule& rule) {
  const std::int64_t slowest = slowest_of(clients), step = clients[waiting].clock;
  std::vector<std::size_t> blockers;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const ParameterClient& client = clients[i];
    if (client.waits() || !client.is_active()) continue;
    const bool is_behind =
        rule.has_backup ? client.clock < step || client.is(ParameterClient::State::kArrived) : client.clock == slowest;
    if (rule.has_begun ? is_behind : i == 0) blockers.push_back(i);
  }
  return blockers;
}

}  // namespace lockstep::train
