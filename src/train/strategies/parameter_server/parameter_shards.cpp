#include "src/train/strategies/parameter_server/parameter_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lockstep/core/error.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

std::int64_t rows_of(const Tensor& tensor) { return tensor.shape().dims() == 0 ? 1 : tensor.shape()[0]; }

// Chooses a server for each piece, in order.
class ServerChoice {
 public:
  ServerChoice(int servers, Sharding sharding)
      : sharding_(sharding), bytes_(static_cast<std::size_t>(servers)), held_(bytes_.size()) {}

  void begin_parameter() { has_piece_.assign(bytes_.size(), false); }

  // A server that has no piece of this parameter yet.
  int next(std::size_t bytes) {
    std::size_t chosen = turn_;
    if (sharding_ == Sharding::kGreedyBytes) {
      chosen = bytes_.size();
      for (std::size_t i = 0; i < bytes_.size(); ++i)
        if (!has_piece_[i] && (chosen == bytes_.size() || bytes_[i] < bytes_[chosen])) chosen = i;
    }
    turn_ = (turn_ + 1) % bytes_.size();
    has_piece_[chosen] = true;
    bytes_[chosen] += bytes;
    ++held_[chosen];
    return static_cast<int>(chosen);
  }

  void check_none_is_idle(std::size_t parameters, std::size_t pieces) const {
    const auto idle = std::find(held_.begin(), held_.end(), std::size_t{0});
    if (idle == held_.end()) return;
    throw InvalidArgument(
        "parameter_server: {} servers for {} {}: ps:{} would hold none; start fewer (lockrun --ps {} at most)",
        bytes_.size(), pieces, pieces == parameters ? "parameters" : "pieces of parameters", idle - held_.begin(),
        pieces);
  }

 private:
  const Sharding sharding_;
  std::vector<std::size_t> bytes_, held_;  // by server
  std::vector<bool> has_piece_;            // by server: of the current parameter
  std::size_t turn_ = 0;
};

std::string name_of(const ParameterPiece& piece, const NamedTensor& parameter) {
  if (piece.count == parameter.tensor.count()) return parameter.name;
  const std::int64_t row = parameter.tensor.count() / rows_of(parameter.tensor);
  const std::int64_t end = piece.begin + piece.count;
  return fmt::format("{}[{}:{}]", parameter.name, piece.begin / row,
                     end == parameter.tensor.count() ? "" : std::to_string(end / row));
}

}  // namespace

std::vector<ParameterPiece> shard_pieces(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding,
                                         std::size_t min_shard_bytes) {
  if (servers < 1) throw InvalidArgument("shard_parameters: got {} servers; expected at least 1", servers);
  ServerChoice choice(servers, sharding);
  std::vector<ParameterPiece> pieces;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& tensor = parameters[i].tensor;
    const std::int64_t rows = rows_of(tensor), row = tensor.count() / std::max<std::int64_t>(rows, 1);
    const auto fitting = min_shard_bytes == 0 ? 1 : static_cast<std::int64_t>(tensor.bytes() / min_shard_bytes);
    const std::int64_t parts = std::clamp<std::int64_t>(std::min(fitting, rows), 1, servers);
    choice.begin_parameter();
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
      const std::int64_t count = parts == 1 ? tensor.count() : (end - first) * row;
      pieces.push_back({i, first * row, count, choice.next(static_cast<std::size_t>(count) * size_of(tensor.dtype()))});
    }
  }
  choice.check_none_is_idle(parameters.size(), pieces.size());
  return pieces;
}

std::vector<int> shard_parameters(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding) {
  std::vector<int> server_of;
  for (const ParameterPiece& piece : shard_pieces(parameters, servers, sharding, 0)) server_of.push_back(piece.server);
  return server_of;
}

std::string describe_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding,
                            std::size_t min_shard_bytes) {
  const std::vector<ParameterPiece> pieces = shard_pieces(parameters, servers, sharding, min_shard_bytes);
  std::size_t width = std::string("parameter").size();
  for (const ParameterPiece& piece : pieces)
    width = std::max(width, name_of(piece, parameters[piece.parameter]).size());
  std::string text = fmt::format("{:{}}  {:<10}  server\n", "parameter", width, "bytes");
  std::vector<std::size_t> bytes(static_cast<std::size_t>(servers));
  for (const ParameterPiece& piece : pieces) {
    const NamedTensor& parameter = parameters[piece.parameter];
    const std::size_t size = static_cast<std::size_t>(piece.count) * size_of(parameter.tensor.dtype());
    text += fmt::format("{:{}}  {:<10}  ps:{}\n", name_of(piece, parameter), width, size, piece.server);
    bytes[static_cast<std::size_t>(piece.server)] += size;
  }
  for (std::size_t server = 0; server < bytes.size(); ++server)
    text += fmt::format("{:{}}  {:<10}  ps:{}\n", "all of", width, bytes[server], server);
  return text;
}

ShardLayout lay_out_shards(const std::vector<NamedTensor>& parameters, int servers,
                           const ParameterServerOptions& options) {
  ShardLayout layout;
  for (const ParameterPiece& piece : shard_pieces(parameters, servers, options.sharding, options.min_shard_bytes))
    layout.pieces.push_back({piece, piece.count == parameters[piece.parameter].tensor.count()});
  for (int server = 0; server < servers; ++server) {
    const std::int64_t begin = layout.total;
    std::int64_t flags = 0;
    for (PlacedPiece& piece : layout.pieces) {
      if (piece.server != server) continue;
      piece.at = layout.total;
      layout.total += whole_lines(piece.count);
      ++flags;
    }
    std::int64_t flag = layout.total;
    for (PlacedPiece& piece : layout.pieces)
      if (piece.server == server) piece.flag = flag++;
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
