#include "src/train/strategies/parameter_server/parameter_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lockstep/core/error.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

std::vector<int> shard_parameters(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding) {
  if (servers < 1) throw InvalidArgument("shard_parameters: got {} servers; expected at least 1", servers);
  std::vector<std::size_t> bytes(static_cast<std::size_t>(servers)), held(bytes.size());
  std::vector<int> server_of;
  for (const auto& [name, tensor] : parameters) {
    const std::size_t server =
        sharding == Sharding::kRoundRobin
            ? server_of.size() % bytes.size()
            : static_cast<std::size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    bytes[server] += tensor.bytes();
    ++held[server];
    server_of.push_back(static_cast<int>(server));
  }
  const auto idle = std::find(held.begin(), held.end(), std::size_t{0});
  if (idle != held.end())
    throw InvalidArgument(
        "parameter_server: {} servers for {} parameters: ps:{} would hold none; start fewer (lockrun --ps {} at most)",
        servers, parameters.size(), idle - held.begin(), parameters.size());
  return server_of;
}

std::string describe_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding) {
  const std::vector<int> server_of = shard_parameters(parameters, servers, sharding);
  std::size_t width = std::string("parameter").size();
  for (const NamedTensor& parameter : parameters) width = std::max(width, parameter.name.size());
  std::string text = fmt::format("{:{}}  {:<10}  server\n", "parameter", width, "bytes");
  std::vector<std::size_t> bytes(static_cast<std::size_t>(servers));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    text +=
        fmt::format("{:{}}  {:<10}  ps:{}\n", parameters[i].name, width, parameters[i].tensor.bytes(), server_of[i]);
    bytes[static_cast<std::size_t>(server_of[i])] += parameters[i].tensor.bytes();
  }
  for (std::size_t server = 0; server < bytes.size(); ++server)
    text += fmt::format("{:{}}  {:<10}  ps:{}\n", "all of", width, bytes[server], server);
  return text;
}

ShardLayout lay_out_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding) {
  ShardLayout layout;
  layout.server_of = shard_parameters(parameters, servers, sharding);
  layout.parameters.resize(parameters.size());
  layout.flags.resize(parameters.size());
  for (int server = 0; server < servers; ++server) {
    const std::int64_t begin = layout.total;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (layout.server_of[i] != server) continue;
      layout.parameters[i] = {layout.total, parameters[i].tensor.count()};
      layout.total += whole_lines(parameters[i].tensor.count());
    }
    std::int64_t flags = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (layout.server_of[i] == server) layout.flags[i] = layout.total + flags++;
    layout.total += whole_lines(flags);
    layout.servers.push_back({begin, layout.total - begin});
  }
  return layout;
}

void move_into(const Tensor& memory, std::int64_t begin, const Tensor& parameter) {
  const Tensor place = floats_of(memory, begin, parameter.count()).reshaped(parameter.shape());
  place.copy_from(parameter);
  parameter.rebind(place.buffer());
}

}  // namespace lockstep::train
