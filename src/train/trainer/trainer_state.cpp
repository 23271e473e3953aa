// A Trainer's state in a checkpoint is JSON of the form
//   {"trainer": 1, "history": {"epochs": [0, 1], "values": [["loss", [2.5, 1.5]], ["val_loss", ["nan", 1.75]]]},
//    "callbacks": [{"name": "EarlyStopping(val_loss, less)", "numbers": {"best": 1.75}, "text": "",
//                   "tensors": ["out.weight"]}]}
// with "position" if an epoch is not complete (version 2 then),
//   {"set": "a set of 50000 samples in batches of 128, 391 steps", "stops": false, "epoch": 2, "steps": 120,
//    "samples": 15360, "losses": [20480.5, 20471.25], "counts": [9817, 15360]}
// and the callbacks' tensors, as "<number of the callback>.<name>". Infinities and NaN, which JSON does not have, are
// strings.
#include "src/train/trainer/trainer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::train {

using nlohmann::ordered_json;

namespace {

constexpr const char* kForm = "trainer";
constexpr int kVersion = 1, kVersionWithPosition = 2;

ordered_json json_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_of(const ordered_json& json) {
  if (json.is_number()) return json.get<double>();
  const auto text = json.get<std::string>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf" || text == "-inf") return text == "inf" ? kInfinity : -kInfinity;
  throw FileError("'{}' is not a number", text);
}

ordered_json json_of(const History& history) {
  ordered_json columns = ordered_json::array();
  for (const std::string& name : history.names()) {
    ordered_json values = ordered_json::array();
    for (const double value : history.values(name)) values.push_back(json_of(value));
    columns.push_back({name, std::move(values)});
  }
  return {{"epochs", history.numbers()}, {"values", std::move(columns)}};
}

History history_of(const ordered_json& json, std::int64_t epochs) {
  History history;
  const auto numbers = json.at("epochs").get<std::vector<std::int64_t>>();
  for (std::size_t line = 0; line < numbers.size(); ++line) {
    if (numbers[line] >= epochs) continue;  // was not completed and will be repeated
    Logs logs;
    for (const ordered_json& column : json.at("values"))
      logs.emplace_back(column.at(0).get<std::string>(), number_of(column.at(1).at(line)));
    history.add(numbers[line], logs);
  }
  return history;
}

// Appends the callback's tensors to `tensors`.
ordered_json json_of(const SavedCallback& callback, std::size_t number, std::vector<NamedTensor>& tensors) {
  ordered_json numbers = ordered_json::object();
  for (const auto& [name, value] : callback.state.numbers) numbers[name] = json_of(value);
  ordered_json names = ordered_json::array();
  for (const auto& [name, tensor] : callback.state.tensors) {
    names.push_back(name);
    tensors.push_back({fmt::format("{}.{}", number, name), tensor});
  }
  return {{"name", callback.name},
          {"numbers", std::move(numbers)},
          {"text", callback.state.text},
          {"tensors", std::move(names)}};
}

SavedCallback callback_of(const ordered_json& json, std::size_t number,
                          const std::unordered_map<std::string, Tensor>& by_name) {
  SavedCallback callback{json.at("name").get<std::string>(), {}};
  for (const auto& [name, value] : json.at("numbers").items()) callback.state.numbers[name] = number_of(value);
  callback.state.text = json.at("text").get<std::string>();
  for (const auto& name : json.at("tensors").get<std::vector<std::string>>()) {
    const auto found = by_name.find(fmt::format("{}.{}", number, name));
    if (found == by_name.end()) throw FileError("the tensor '{}' of callback '{}' is missing", name, callback.name);
    callback.state.tensors.push_back({name, found->second});
  }
  return callback;
}

ordered_json json_of(const EpochPosition& position) {
  ordered_json losses = ordered_json::array();
  for (const double loss : position.losses) losses.push_back(json_of(loss));
  return {{"set", position.set},      {"stops", position.stops},     {"epoch", position.epoch},
          {"steps", position.steps},  {"samples", position.samples}, {"losses", std::move(losses)},
          {"counts", position.counts}};
}

EpochPosition read_position(const ordered_json& json) {
  EpochPosition position{json.at("set").get<std::string>(), json.at("stops").get<bool>(),
                         json.at("epoch").get<std::int64_t>(), json.at("steps").get<std::int64_t>(),
                         json.at("samples").get<std::int64_t>()};
  for (const ordered_json& loss : json.at("losses")) position.losses.push_back(number_of(loss));
  position.counts = json.at("counts").get<std::vector<std::int64_t>>();
  return position;
}

// Returns each callback's state name, "" for one without a state.
std::vector<std::string> names_of(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const auto& callback : callbacks) {
    std::string name = callback->state_name();
    if (!name.empty())
      if (const int times = ++seen[name]; times > 1) name += fmt::format(" #{}", times);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

std::vector<SavedCallback> states_of(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::vector<SavedCallback> states;
  const std::vector<std::string> names = names_of(callbacks);
  for (std::size_t i = 0; i < callbacks.size(); ++i)
    if (!names[i].empty()) states.push_back({names[i], callbacks[i]->state()});
  return states;
}

void restore_states(Trainer& trainer, const std::vector<std::shared_ptr<Callback>>& callbacks,
                    const std::vector<SavedCallback>& states) {
  const std::vector<std::string> names = names_of(callbacks);
  for (std::size_t i = 0; i < callbacks.size(); ++i)
    for (const SavedCallback& saved : states)
      if (saved.name == names[i]) callbacks[i]->restore(trainer, saved.state);
}

ProgramState program_state_of(const TrainerState& state) {
  ProgramState program;
  ordered_json callbacks = ordered_json::array();
  for (std::size_t i = 0; i < state.callbacks.size(); ++i)
    callbacks.push_back(json_of(state.callbacks[i], i, program.tensors));
  ordered_json all = {{kForm, state.position ? kVersionWithPosition : kVersion},
                      {"history", json_of(state.history)},
                      {"callbacks", std::move(callbacks)}};
  if (state.position) all["position"] = json_of(*state.position);
  try {
    program.text = all.dump();
  } catch (const ordered_json::type_error& error) {
    throw InvalidArgument("Trainer::save: a name or text of a callback's state is not UTF-8: {}", error.what());
  }
  return program;
}

TrainerState trainer_state_of(const ProgramState& program, std::int64_t epochs, const std::string& folder) {
  const ordered_json json = ordered_json::parse(program.text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kForm)) return {};
  try {
    if (const int version = json.at(kForm).get<int>(); version != kVersion && version != kVersionWithPosition)
      throw FileError("it has version {}, but this version of Lockstep reads {} and {}", version, kVersion,
                      kVersionWithPosition);
    TrainerState state{history_of(json.at("history"), epochs), {}};
    std::unordered_map<std::string, Tensor> by_name;
    for (const auto& [name, tensor] : program.tensors) by_name.emplace(name, tensor);
    for (const ordered_json& callback : json.at("callbacks"))
      state.callbacks.push_back(callback_of(callback, state.callbacks.size(), by_name));
    if (json.contains("position")) state.position = read_position(json.at("position"));
    return state;
  } catch (const std::exception& error) {
    throw FileError("{}: the trainer's state cannot be read: {}", folder, error.what());
  }
}

}  // namespace lockstep::train
