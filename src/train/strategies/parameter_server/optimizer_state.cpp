// The message: the length of a JSON header, the header with each entry's key and bytes, and the entries' values.
#include "src/train/strategies/parameter_server/optimizer_state.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

using nlohmann::json;

// A part of a tensor of the state, as bytes.
struct StateWindow {
  std::string key;  // "<parameter>.<state>", "clock of <parameter>"
  Tensor tensor;
  std::size_t begin = 0, bytes = 0;

  Tensor bytes_on_device() const {
    return Tensor::wrap(tensor.buffer().window(begin, bytes), {static_cast<std::int64_t>(bytes)}, DType::kUInt8);
  }
};

// The rows of the groups' clocks are in the order of the optimizer's parameters.
std::vector<StateWindow> windows_of(optim::Optimizer& optimizer, const std::vector<StateRange>& ranges) {
  std::map<std::string, const StateRange*> by_name;
  for (const StateRange& range : ranges) by_name[range.parameter] = &range;
  const std::vector<NamedTensor>& parameters = optimizer.parameters();
  std::vector<StateWindow> windows;
  std::size_t row = 0, group = 0;
  for (const auto& [name, tensor] : optimizer.state()) {
    if (name == fmt::format("group{}.clock", group)) {
      ++group;
      const auto rows = static_cast<std::size_t>(tensor.shape()[0]);
      for (std::size_t i = 0; i < rows; ++i, ++row)
        if (by_name.count(parameters[row].name) != 0)
          windows.push_back(
              {"clock of " + parameters[row].name, tensor, i * tensor.bytes() / rows, tensor.bytes() / rows});
      continue;
    }
    const auto found = by_name.find(name.substr(0, name.rfind('.')));
    if (found == by_name.end()) continue;
    const std::size_t element = size_of(tensor.dtype());
    windows.push_back({name, tensor, static_cast<std::size_t>(found->second->begin) * element,
                       static_cast<std::size_t>(found->second->count) * element});
  }
  return windows;
}

}  // namespace

std::string pack_state(optim::Optimizer& optimizer, const std::vector<StateRange>& ranges) {
  json entries = json::array();
  std::string values;
  for (const StateWindow& window : windows_of(optimizer, ranges)) {
    const Tensor host = window.bytes_on_device().to(cpu_device());
    entries.push_back({window.key, window.bytes});
    values.append(reinterpret_cast<const char*>(host.buffer().data()), window.bytes);
  }
  const std::string header =
      json{{"kind", optimizer.kind()}, {"lr", optimizer.lr()}, {"entries", std::move(entries)}}.dump();
  const auto length = static_cast<std::uint64_t>(header.size());
  std::string message(reinterpret_cast<const char*>(&length), sizeof length);
  return message + header + values;
}

void unpack_state(optim::Optimizer& optimizer, const std::vector<StateRange>& ranges, const std::string& message) {
  std::uint64_t length = 0;
  std::memcpy(&length, message.data(), sizeof length);
  const json header = json::parse(message.substr(sizeof length, length));
  const std::vector<StateWindow> windows = windows_of(optimizer, ranges);
  const json& entries = header.at("entries");
  const auto differ = [&](const std::string& what) {
    throw InvalidArgument(
        "parameter_server: Training::optimizer() makes an optimizer for the parameters of each server, and one for all "
        "on a worker, to save and load their state, and these differ: {}",
        what);
  };
  if (header.at("kind") != optimizer.kind())
    differ(fmt::format("{} here, {} there", optimizer.kind(), header.at("kind").get<std::string>()));
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;  // by key: the first byte, bytes
  std::size_t at = sizeof length + length;
  for (const json& entry : entries) {
    places[entry.at(0).get<std::string>()] = {at, entry.at(1).get<std::size_t>()};
    at += entry.at(1).get<std::size_t>();
  }
  for (const StateWindow& window : windows)
    if (const auto place = places.find(window.key); place == places.end() || place->second.second != window.bytes)
      differ(fmt::format("the state '{}' of {} bytes is missing there", window.key, window.bytes));
  if (windows.size() != places.size())
    differ(fmt::format("{} tensors of state here, {} there", windows.size(), places.size()));
  for (const StateWindow& window : windows) {
    const Tensor host = Tensor::empty({static_cast<std::int64_t>(window.bytes)}, DType::kUInt8, cpu_device());
    std::memcpy(host.buffer().data(), message.data() + places.at(window.key).first, window.bytes);
    window.bytes_on_device().copy_from(host);
    window.tensor.mark_changed();
  }
  optimizer.set_lr(header.at("lr").get<float>());
}

}  // namespace lockstep::train
