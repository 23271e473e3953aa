#include "src/launch/attempts/restart_policy.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/launch/output/line_folder.h"

namespace lockstep::launch {

namespace {

constexpr int kArgumentsRefused = 2;  // as run_main
constexpr std::chrono::seconds kFirstPause(1), kLongestPause(30);

// A message may have several lines, and a report has one for each attempt.
std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

bool is_same_failure(const Attempt& one, const Attempt& other) {
  if (!one.failure || !other.failure || one.failure->is_from_outside || other.failure->is_from_outside) return false;
  if (!one.step || one.step != other.step) return false;
  return one.failure->rank == other.failure->rank && one.failure->how == other.failure->how &&
         one.failure->exception == other.failure->exception;
}

std::string name_of(const FirstFailure& failure) {
  if (failure.rank < 0) return fmt::format("the lockrun of node {}", failure.node);
  return failure.task.empty() ? fmt::format("rank {}", failure.rank)
                              : fmt::format("rank {} ({})", failure.rank, failure.task);
}

std::string sentence_of(const FirstFailure& failure) {
  return fmt::format("{} {}{}", name_of(failure), failure.how,
                     failure.exception.empty() ? "" : fmt::format(": {}", first_line_of(failure.exception)));
}

const char* name_of(Attempt::End end) {
  switch (end) {
    case Attempt::End::kFinished: return "finished";
    case Attempt::End::kFailed: return "failed";
    case Attempt::End::kInterrupted: return "interrupted";
    case Attempt::End::kPreempted: return "preempted";
    case Attempt::End::kNotStarted: return "not started";
  }
  return "";
}

std::string time_of(std::chrono::system_clock::time_point when) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(when)));
}

}  // namespace

RestartPolicy::Answer RestartPolicy::judge(const Attempt& attempt) {
  const std::optional<Attempt> before = std::exchange(before_, attempt);
  without_checkpoint_ = attempt.saved_step ? 0 : without_checkpoint_ + 1;
  if (attempt.end != Attempt::End::kFailed || !attempt.failure || attempt.number >= max_restarts_) return {};
  if (attempt.exit_code == kArgumentsRefused && attempt.step == 0)
    return {.why_not =
                fmt::format("lockrun: no restart: {} {} before its first step, as a program does that refuses its "
                            "arguments\n",
                            name_of(*attempt.failure), attempt.failure->how)};
  if (before && is_same_failure(*before, attempt))
    return {.why_not =
                fmt::format("lockrun: no restart: the same failure has ended two attempts at step {}, {} and {}: "
                            "it would come again\n",
                            *attempt.step, before->number, attempt.number)};
  const int doublings = std::clamp(without_checkpoint_ - 2, 0, 5);
  return {.restarts = true,
          .pause = without_checkpoint_ < 2 ? std::chrono::seconds(0)
                                           : std::min(kLongestPause, kFirstPause * (1 << doublings))};
}

std::string text_of(const std::vector<Attempt>& attempts, int exit_code) {
  std::string text = fmt::format("lockrun: {} attempts, exit code {}\n", attempts.size(), exit_code);
  for (const Attempt& attempt : attempts) {
    text += fmt::format("lockrun:   attempt {} at {}, {}: {}{}", attempt.number, time_of(attempt.began),
                        attempt.resumed_step ? fmt::format("from step {}", *attempt.resumed_step) : "from the start",
                        name_of(attempt.end), attempt.step ? fmt::format(" at step {}", *attempt.step) : "");
    if (attempt.failure) text += fmt::format(": {}", sentence_of(*attempt.failure));
    if (!attempt.consequences.empty())
      text +=
          fmt::format("; then rank{} {}", attempt.consequences.size() == 1 ? "" : "s", ranges_of(attempt.consequences));
    text += '\n';
  }
  return text;
}

std::string json_of(const std::vector<Attempt>& attempts, int max_restarts, int exit_code) {
  using nlohmann::ordered_json;
  const auto step = [](const std::optional<std::int64_t>& value) { return value ? ordered_json(*value) : nullptr; };
  ordered_json all = ordered_json::array();
  for (const Attempt& attempt : attempts) {
    ordered_json one = {{"attempt", attempt.number},
                        {"began", time_of(attempt.began)},
                        {"ended", time_of(attempt.ended)},
                        {"end", name_of(attempt.end)},
                        {"exit_code", attempt.exit_code},
                        {"resumed_step", step(attempt.resumed_step)},
                        {"saved_step", step(attempt.saved_step)},
                        {"step", step(attempt.step)},
                        {"first_failure", nullptr},
                        {"consequences", attempt.consequences}};
    if (const auto& failure = attempt.failure)
      one["first_failure"] = {{"node", failure->node},
                              {"rank", failure->rank < 0 ? ordered_json(nullptr) : ordered_json(failure->rank)},
                              {"task", failure->task},
                              {"how", failure->how},
                              {"exception", failure->exception},
                              {"last_lines", failure->last_lines}};
    all.push_back(std::move(one));
  }
  const ordered_json report = {{"exit_code", exit_code}, {"max_restarts", max_restarts}, {"attempts", std::move(all)}};
  return report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launch
