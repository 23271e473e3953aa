#include "lockstep/comm/agreement.h"

#include <algorithm>
#include <sstream>

#include "lockstep/core/log.h"
#include "src/core/base/error_of_peer.h"
#include "src/core/base/message_text.h"

namespace lockstep {

namespace {

// One for each kind of call, so that ranks in different ones get a MismatchError and not each other's texts.
const CallOptions kRefusals{.purpose = {"refusals"}}, kSettings{.purpose = {"comparison of settings"}};

// How a rank's call ended: the first character of its message to the others. The rest is the result or the error's
// text.
enum class Outcome : char { kResult = '+', kInvalidArgument = 'a', kFileError = 'f', kError = 'e' };

std::string message(Outcome outcome, std::string text) {
  return std::string(1, static_cast<char>(outcome)).append(text);
}

Outcome outcome_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument&) {
    return Outcome::kInvalidArgument;
  } catch (const FileError&) {
    return Outcome::kFileError;
  } catch (...) {
    return Outcome::kError;
  }
}

[[noreturn]] void throw_error_of_peer(std::size_t rank, const std::string& message) {
  const std::string text = fmt::format("rank {}: {}", rank, message.substr(1));
  switch (static_cast<Outcome>(message[0])) {
    case Outcome::kInvalidArgument: throw InvalidArgument("{}", text);
    case Outcome::kFileError: throw FileErrorOfPeer("{}", text);
    default: throw ErrorOfPeer("{}", text);
  }
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "" if the lists are equal.
std::string first_difference(int rank, const std::vector<std::string>& mine, const std::vector<std::string>& rank0s) {
  for (std::size_t i = 0; i < std::max(mine.size(), rank0s.size()); ++i) {
    const std::string left = i < mine.size() ? mine[i] : "nothing", right = i < rank0s.size() ? rank0s[i] : "nothing";
    if (left != right) return fmt::format("rank {} has {} at position {}, rank 0 has {}", rank, left, i, right);
  }
  return "";
}

}  // namespace

void refuse_on_all_ranks(GroupRef group, std::string_view operation, const std::string& refusal) {
  if (!group.has_several()) {
    if (!refusal.empty()) throw InvalidArgument("{}: {}", operation, refusal);
    return;
  }
  const std::vector<std::string> refusals = group.get()->all_gather_text(refusal, kRefusals);
  for (std::size_t rank = 0; rank < refusals.size(); ++rank)
    if (!refusals[rank].empty()) throw InvalidArgument("{}: rank {}: {}", operation, rank, refusals[rank]);
}

void check_same_on_all_ranks(GroupRef group, std::string_view operation, const std::vector<std::string>& lines,
                             std::string_view difference) {
  if (!group.has_several()) return;
  const std::vector<std::string> mine = split_lines(joined_lines(lines));
  const std::vector<std::string> rank0s = split_lines(group.get()->broadcast_text(joined_lines(lines), 0, kSettings));
  for (const std::string& found : group.get()->all_gather_text(first_difference(group.rank(), mine, rank0s), kSettings))
    if (!found.empty()) throw MismatchError("{}: the ranks {}: {}", operation, difference, found);
}

std::vector<std::string> gather_on_all_ranks(GroupRef group, const std::function<std::string()>& call,
                                             const Purpose& purpose) {
  if (!group.has_several()) return {call()};
  std::exception_ptr own;
  std::string mine;
  try {
    mine = message(Outcome::kResult, call());
  } catch (...) {
    own = std::current_exception();
    mine = message(outcome_of(own), exception_text(own));
  }
  std::vector<std::string> all;
  try {
    all = group.get()->all_gather_text(mine, {.purpose = purpose});
  } catch (const std::exception& end) {
    if (!own) throw;
    log::warn("this rank's own error follows; its group has ended, too: {}", end.what());
    std::rethrow_exception(own);  // it may be why the group has ended
  }
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<Outcome>(all[rank][0]) != Outcome::kResult) throw_error_of_peer(rank, all[rank]);
    all[rank].erase(0, 1);
  }
  return all;
}

void abort_for(GroupRef group, const std::exception_ptr& error) {
  if (group.has_several()) group.get()->abort(exception_text(error));
}

void abort_and_throw(GroupRef group, const std::string& reason) {
  if (group.has_several()) group.get()->abort(reason);
  throw InvalidArgument("{}", reason);
}

}  // namespace lockstep
