// The flow of data of a save in the background:
//
//   the training's thread                                    the writing thread
//   settle_last_save: the ranks wait for the last save, and
//     agree on how it ended
//   plan_save: they compare steps, epochs and replicas
//   save_in_background: each rank copies what it writes
//     into its HostCopies; nothing is copied on a rank that
//     writes no file
//   Saver::start ------------------------------------------> run_save: the steps of save.cpp, from the copies. If the
//   the training goes on                                     state is sliced, the threads of all ranks run them
//     and changes the weights                                together in the writers' group; otherwise rank 0's alone
//   the next save, wait_for_saves(), the group's end <------ LastSave: saved, or the error
//
// The training's group is used by the training's thread alone. Every wait has a deadline: in the writers' group that of
// its calls, which also end when a rank dies; for the thread the one in settle_last_save() and Saver::await_end(). A
// thread beyond its deadline, which waits for its disk, goes on alone: its copies stay untouched until it ends.
#include "src/train/checkpoint/background/background_save.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/error_of_peer.h"
#include "src/train/checkpoint/background/saver.h"

namespace lockstep::train::checkpoint {

using nlohmann::json;

namespace {

constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(2), kRound = std::chrono::seconds(5);

// The other ranks wait for this one in a call.
std::chrono::milliseconds within_calls(GroupRef group, std::chrono::milliseconds longest) {
  return group.has_several() ? std::min(longest, group.get()->timeout() / 2) : longest;
}

std::string message_of(const LastSave& last, bool stands_still) {
  return json{{"is_running", last.is_running},
              {"end", static_cast<int>(last.end)},
              {"is_of_peer", last.is_of_peer},
              {"stops", last.stops},
              {"step", last.step},
              {"text", last.text},
              {"stands_still", stands_still}}
      .dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

struct SaveOfRank {
  LastSave last;
  bool stands_still = false;
};

SaveOfRank save_of(const std::string& message) {
  const json end = json::parse(message);
  SaveOfRank save;
  save.last.is_running = end.at("is_running");
  save.last.end = static_cast<SaveEnd>(end.at("end").get<int>());
  save.last.is_of_peer = end.at("is_of_peer");
  save.last.stops = end.at("stops");
  save.last.step = end.at("step");
  save.last.text = end.at("text").get<std::string>();
  save.stands_still = end.at("stands_still");
  return save;
}

// Collective: how the last save ended on each rank.
std::vector<SaveOfRank> gather_ends(GroupRef group, const LastSave& own, bool stands_still) {
  std::vector<SaveOfRank> ends;
  for (const std::string& message :
       gather_on_all_ranks(group, [&] { return message_of(own, stands_still); }, {"last checkpoint"}))
    ends.push_back(save_of(message));
  return ends;
}

bool is_error(const LastSave& last) {
  return last.end == SaveEnd::kFailed || last.end == SaveEnd::kRefused || last.end == SaveEnd::kBroken;
}

// An error that kContinue does not forgive.
bool throws(const LastSave& last) { return is_error(last) && (last.end != SaveEnd::kFailed || last.stops); }

// On all ranks the error of the rank on which it arose.
void throw_errors(const std::vector<SaveOfRank>& ends, int rank) {
  const SaveOfRank* worst = nullptr;
  for (const SaveOfRank& each : ends)
    if (throws(each.last) && (worst == nullptr || (worst->last.is_of_peer && !each.last.is_of_peer))) worst = &each;
  if (worst == nullptr) return;
  const LastSave& last = worst->last;
  const bool is_own = worst == &ends[static_cast<std::size_t>(rank)] && !last.is_of_peer;
  const std::string text = fmt::format("{} (step {}, saved in the background)", last.text, last.step);
  if (last.end == SaveEnd::kBroken) {
    if (is_own) throw Error("{}", text);
    throw ErrorOfPeer("{}", text);
  }
  if (is_own) throw FileError("{}", text);
  throw FileErrorOfPeer("{}", text);
}

const LastSave* running_in(const std::vector<SaveOfRank>& ends) {
  const auto found = std::find_if(ends.begin(), ends.end(), [](const auto& each) { return each.last.is_running; });
  return found == ends.end() ? nullptr : &found->last;
}

// Collective, when no rank is writing any more.
void report(Saver& saver, const std::vector<SaveOfRank>& ends, int rank) {
  saver.forget_last();
  // Threads may have left their group at different points. The ranks drop it together.
  if (std::any_of(ends.begin(), ends.end(), [](const auto& each) { return is_error(each.last); })) saver.drop_writers();
  throw_errors(ends, rank);
}

std::string slow_text(std::int64_t step, std::chrono::milliseconds waited) {
  return fmt::format(
      "save_checkpoint: the checkpoint of step {} is still being written, after a wait of {:.0f} s: the disk is "
      "too slow for this many saves, or does not answer",
      step, std::chrono::duration<double>(waited).count());
}

}  // namespace

void save_in_background(const CallGroup& group, SavePlan plan) {
  const std::shared_ptr<Saver> saver = Saver::of(group);
  const std::lock_guard lock(saver->beginning());
  const auto longest = within_calls(group, kLongestWait);
  on_all_ranks(group, [&] {
    // Another thread without a group may have begun one since settle_last_save().
    if (!saver->await(longest)) throw FileError("{}", slow_text(saver->last().step, longest));
    saver->copies().take(plan.files);
  });
  plan.group = nullptr;
  if (plan.is_sliced) plan.group = saver->writers(*group.get());
  if (!plan.files.empty()) saver->start(std::move(plan));
}

std::string settle_last_save(const CallGroup& group) {
  const std::shared_ptr<Saver> saver = Saver::find(group);
  if (!saver) return "";
  const auto longest = within_calls(group, kLongestWait);
  const bool has_ended = saver->await(longest);
  const LastSave last = saver->last();
  // Threads without a group share this object, and another one has begun its save since then.
  if (has_ended && last.is_running && group.get() == nullptr) return "";
  const std::vector<SaveOfRank> ends = gather_ends(group, last, false);
  if (const LastSave* const running = running_in(ends)) return slow_text(running->step, longest);
  report(*saver, ends, group.rank());
  return "";
}

std::string await_last_save(const CallGroup& group) {
  const std::shared_ptr<Saver> saver = Saver::find(group);
  if (!saver) return "";
  using Clock = std::chrono::steady_clock;
  auto advanced = Clock::now();
  std::uint64_t before = saver->last().bytes_so_far;
  while (true) {
    saver->await(within_calls(group, kRound));
    const LastSave own = saver->last();
    if (own.bytes_so_far != before) advanced = Clock::now(), before = own.bytes_so_far;
    const bool stands_still = Clock::now() - advanced > Saver::kLongestStandstill;
    const std::vector<SaveOfRank> ends = gather_ends(group, own, stands_still);
    const LastSave* const running = running_in(ends);
    if (running == nullptr) {
      report(*saver, ends, group.rank());
      return own.end == SaveEnd::kSaved ? own.text : "";
    }
    if (std::any_of(ends.begin(), ends.end(),
                    [](const auto& each) { return each.last.is_running && !each.stands_still; }))
      continue;
    const std::string text = slow_text(running->step, Saver::kLongestStandstill);
    if (running->stops) throw FileError("{}", text);
    if (group.rank() == 0) log::warn("step {} is not saved, and the training goes on: {}", running->step, text);
    return "";
  }
}

void await_own_save(const CallGroup& group) {
  if (const std::shared_ptr<Saver> saver = Saver::find(group)) saver->await(within_calls(group, kLongestWait));
}

}  // namespace lockstep::train::checkpoint
