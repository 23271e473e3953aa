// Calls of a Trainer whose strategy has servers. The result of a call is a header, with the Trainer's state after it or
// the workers' error, and the call's own bytes.
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/base/message_text.h"
#include "src/train/trainer/trainer_impl.h"

namespace lockstep::train {

namespace {

using nlohmann::json;

std::string with_header(const json& header, const std::string& bytes) {
  const std::string text = header.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  const auto length = static_cast<std::uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + bytes;
}

std::pair<json, std::string> without_header(const std::string& result) {
  std::uint64_t length = 0;
  std::memcpy(&length, result.data(), sizeof length);
  return {json::parse(result.substr(sizeof length, length)), result.substr(sizeof length + length)};
}

bool is_mistake(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument&) {
    return true;
  } catch (...) {
    return false;
  }
}

// A worker that fails, with an exception of any type, notifies the servers, unless the job has ended.
void end_failed_call(CallWorker& worker, const std::exception_ptr& error) {
  try {
    worker.end_call(with_header({{"error", exception_text(error)}, {"is_mistake", is_mistake(error)}}, ""));
  } catch (const std::exception&) {
    // The servers have lost the group.
  }
}

// Counts a call while it is alive.
class CountedCall {
 public:
  explicit CountedCall(int& calls) : calls_(calls) { ++calls_; }
  ~CountedCall() { --calls_; }
  CountedCall(const CountedCall&) = delete;
  CountedCall& operator=(const CountedCall&) = delete;

 private:
  int& calls_;
};

}  // namespace

std::string Trainer::Impl::served(Trainer& trainer, const std::function<std::string()>& compute) {
  if (auto* const server = strategy->as<CallServer>()) {
    const auto [state, bytes] = without_header(server->serve_call());
    if (state.contains("error")) {
      const std::string text = "on the workers: " + state.at("error").get<std::string>();
      if (state.at("is_mistake").get<bool>()) throw InvalidArgument("{}", text);
      throw Error("{}", text);
    }
    trainer.step_ = state.at("step");
    trainer.epoch_ = state.at("epoch");
    trainer.is_preempted_ = state.at("is_preempted");
    trainer.history_ =
        trainer_state_of({state.at("history").get<std::string>(), {}}, std::numeric_limits<std::int64_t>::max(), "")
            .history;
    return bytes;
  }
  auto* const worker = calls == 0 ? strategy->as<CallWorker>() : nullptr;
  if (worker == nullptr) return compute();
  std::string bytes;
  try {
    const CountedCall counted(calls);
    bytes = compute();
  } catch (...) {
    end_failed_call(*worker, std::current_exception());
    throw;
  }
  worker->end_call(with_header({{"step", trainer.step_},
                                {"epoch", trainer.epoch_},
                                {"is_preempted", trainer.is_preempted_},
                                {"history", program_state_of({trainer.history_, {}}).text}},
                               bytes));
  return bytes;
}

std::string result_of(const Logs& logs) {
  History history;
  history.add(0, logs);
  return program_state_of({history, {}}).text;
}

Logs logs_of_result(const std::string& result) {
  const History history = trainer_state_of({result, {}}, 1, "").history;
  Logs logs;
  for (const std::string& name : history.names()) logs.emplace_back(name, history.values(name).front());
  return logs;
}

std::string result_of(const Tensor& outputs) {
  const auto extents = outputs.shape().extents();
  return with_header(std::vector<std::int64_t>(extents.begin(), extents.end()),
                     std::string(reinterpret_cast<const char*>(outputs.data<float>()), outputs.bytes()));
}

Tensor tensor_of_result(const std::string& result) {
  const auto [extents, bytes] = without_header(result);
  Tensor outputs = Tensor::empty(Shape(extents.get<std::vector<std::int64_t>>()), DType::kFloat32, cpu_device());
  std::memcpy(outputs.data<float>(), bytes.data(), bytes.size());
  return outputs;
}

std::string result_of(const std::optional<CheckpointState>& state) {
  if (!state) return "";
  return json{{"step", state->step}, {"epoch", state->epoch}, {"ranks", state->world_size}, {"folder", state->folder}}
      .dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

std::optional<CheckpointState> state_of_result(const std::string& result) {
  if (result.empty()) return std::nullopt;
  const json state = json::parse(result);
  return CheckpointState{state.at("step"), state.at("epoch"), state.at("ranks"), state.at("folder")};
}

}  // namespace lockstep::train
