#include "src/comm/flight/flight_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "src/comm/net/limits.h"
#include "src/core/process/fd.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 4> kStates = {"issued", "started", "finished", "failed"};

constexpr std::int64_t kMostMembers = 16'000'000;  // of all groups together

bool is_message(const FlightEntry& entry) { return entry.operation == "send" || entry.operation == "recv"; }

Json json_of(const FlightEntry& entry) {
  Json json{{"sequence", entry.sequence}, {"operation", entry.operation},
            {"dtype", entry.dtype},       {"count", entry.count},
            {"bytes", entry.bytes},       {"state", kStates[static_cast<std::size_t>(entry.state)]}};
  if (!entry.reduce_op.empty()) json["reduce_op"] = entry.reduce_op;
  if (entry.root >= 0) json["root"] = entry.root;
  if (is_message(entry)) {
    json["peer"] = entry.peer;
    json["tag"] = entry.tag;
  }
  if (!entry.purpose.empty()) json["purpose"] = entry.purpose;
  if (entry.purpose_index >= 0) json["purpose_index"] = entry.purpose_index;
  if (entry.layout != 0) json["layout"] = entry.layout;
  json["issued_ns"] = entry.issued_ns;
  if (entry.started_ns != 0) json["started_ns"] = entry.started_ns;
  if (entry.ended_ns != 0) json["ended_ns"] = entry.ended_ns;
  return json;
}

FlightEntry entry_of(const Json& json) {
  FlightEntry entry;
  entry.sequence = json.at("sequence");
  entry.operation = json.at("operation");
  entry.dtype = json.at("dtype");
  entry.count = json.at("count");
  entry.bytes = json.at("bytes");
  const std::string state = json.at("state");
  std::size_t known = 0;
  while (known < kStates.size() && state != kStates[known]) ++known;
  if (known == kStates.size()) throw Error("'{}' is not a state of an operation", state);
  entry.state = static_cast<FlightState>(known);
  entry.reduce_op = json.value("reduce_op", "");
  entry.root = json.value("root", -1);
  entry.peer = json.value("peer", -1);
  entry.tag = json.value("tag", -1);
  entry.purpose = json.value("purpose", "");
  entry.purpose_index = json.value("purpose_index", -1);
  entry.layout = json.value("layout", 0u);
  entry.issued_ns = json.at("issued_ns");
  entry.started_ns = json.value("started_ns", std::int64_t{0});
  entry.ended_ns = json.value("ended_ns", std::int64_t{0});
  return entry;
}

Json json_of(const FlightGroup& group) {
  Json json{{"name", group.name},       {"rank", group.rank},          {"world_size", group.world_size},
            {"members", group.members}, {"backend", group.backend},    {"transport", group.transport},
            {"failure", nullptr},       {"operations", Json::array()}, {"messages", Json::array()}};
  if (group.failure) json["failure"] = {{"text", group.failure->text}, {"at_ns", group.failure->at_ns}};
  for (const FlightEntry& entry : group.operations) json["operations"].push_back(json_of(entry));
  for (const FlightEntry& entry : group.messages) json["messages"].push_back(json_of(entry));
  return json;
}

// Readers allocate an entry for every rank of a group, so a damaged number must be refused first.
void check_world_size(int world_size, const std::string& where) {
  if (world_size < 1 || world_size > kMaxRanks)
    throw Error("{}a world of {} ranks, expected 1..{}", where, world_size, kMaxRanks);
}
void check_members(const std::vector<FlightGroup>& groups) {
  std::int64_t members = 0;
  for (const FlightGroup& group : groups) members += group.world_size;
  if (members > kMostMembers)
    throw Error("its {} groups have {} members together, expected at most {}", groups.size(), members, kMostMembers);
}

FlightGroup group_of(const Json& json) {
  FlightGroup group;
  group.name = json.at("name");
  group.rank = json.at("rank");
  group.world_size = json.at("world_size");
  group.members = json.at("members").get<std::vector<int>>();
  group.backend = json.at("backend");
  group.transport = json.at("transport");
  if (!json.at("failure").is_null())
    group.failure = FlightFailure{json["failure"].at("text"), json["failure"].at("at_ns")};
  for (const Json& entry : json.at("operations")) group.operations.push_back(entry_of(entry));
  for (const Json& entry : json.at("messages")) group.messages.push_back(entry_of(entry));
  check_world_size(group.world_size, fmt::format("group {}: ", group.name));
  if (group.rank < 0 || group.rank >= group.world_size)
    throw Error("group {}: rank {} does not exist among {}", group.name, group.rank, group.world_size);
  if (!group.members.empty() && group.members.size() != static_cast<std::size_t>(group.world_size))
    throw Error("group {}: names {} members, but has {} ranks", group.name, group.members.size(), group.world_size);
  return group;
}

FlightDump dump_of(const Json& json) {
  const int version = json.at("version");
  if (version != FlightDump::kVersion)
    throw Error("it has the format {}, this program reads {}: use the lockrun of the library that wrote it", version,
                FlightDump::kVersion);
  FlightDump dump;
  dump.job = json.at("job");
  dump.rank = json.at("rank");
  dump.world_size = json.at("world_size");
  dump.host = json.at("host");
  dump.pid = json.at("pid");
  dump.boot_id = json.at("boot_id");
  dump.reason = json.at("reason");
  dump.written_ns = json.at("written_ns");
  dump.monotonic_ns = json.at("monotonic_ns");
  for (const Json& group : json.at("groups")) dump.groups.push_back(group_of(group));
  check_world_size(dump.world_size, "");
  check_members(dump.groups);
  if (dump.rank < 0 || dump.rank >= dump.world_size)
    throw Error("rank {} does not exist in a world of {}", dump.rank, dump.world_size);
  return dump;
}

}  // namespace

std::string to_json(const FlightDump& dump) {
  Json json{{"version", FlightDump::kVersion},   {"job", dump.job},        {"rank", dump.rank},
            {"world_size", dump.world_size},     {"host", dump.host},      {"pid", dump.pid},
            {"boot_id", dump.boot_id},           {"reason", dump.reason},  {"written_ns", dump.written_ns},
            {"monotonic_ns", dump.monotonic_ns}, {"groups", Json::array()}};
  for (const FlightGroup& group : dump.groups) json["groups"].push_back(json_of(group));
  // Texts may contain strings of the program: invalid UTF-8 must not make the record unreadable.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

FlightDump flight_dump_from_json(const std::string& text, const std::string& source) {
  try {
    return dump_of(Json::parse(text));
  } catch (const Json::parse_error& error) {
    throw FileError("{}: incomplete flight record (broken JSON at byte {}): was the disk full, or the copy cut short?",
                    source, error.byte);
  } catch (const Json::exception& error) {
    throw FileError("{}: not a flight record: {}", source, error.what());
  } catch (const Error& error) {
    throw FileError("{}: not a flight record that can be read: {}", source, error.what());
  }
}

std::string describe(const FlightEntry& entry) {
  std::string details;
  const auto add = [&](const std::string& text) { details += (details.empty() ? "" : ", ") + text; };
  std::string name = fmt::format("{} #{}", entry.operation, entry.sequence);
  if (is_message(entry)) {
    const std::string peer = entry.peer < 0 ? "any rank" : fmt::format("rank {}", entry.peer);
    return fmt::format("{} {} {} (tag {}, {} x {})", name, entry.operation == "send" ? "to" : "from", peer, entry.tag,
                       entry.dtype, entry.count);
  }
  if (entry.operation == "allocate") return fmt::format("{} ({} bytes)", name, entry.bytes);
  if (!entry.purpose.empty())
    add(entry.purpose_index >= 0 ? fmt::format("{} {}", entry.purpose, entry.purpose_index) : entry.purpose);
  if (entry.purpose.empty() && entry.purpose_index >= 0) add(fmt::format("index {}", entry.purpose_index));
  if (entry.operation == "all_to_all_v")
    add(entry.dtype);
  else if (entry.operation != "barrier" && entry.operation != "follower")
    add(fmt::format("{} x {}", entry.dtype, entry.count));
  if (entry.layout != 0 && entry.operation != "all_to_all_v") add(fmt::format("layout {:08x}", entry.layout));
  if (!entry.reduce_op.empty()) add(entry.reduce_op);
  if (entry.root >= 0) add(fmt::format("root {}", entry.root));
  return details.empty() ? name : fmt::format("{} ({})", name, details);
}

void write_flight_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code failure;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failure);
  if (failure)
    throw FileError("flight record: cannot make the folder {}: {}", path.parent_path().string(), failure.message());
  const std::string part = fmt::format("{}.{}.part", path.string(), getpid());
  const auto give_up = [&](const char* step) {
    const int error = errno;
    ::unlink(part.c_str());
    throw FileError("flight record: cannot {} {}: {}", step, path.string(), std::strerror(error));
  };
  Fd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) give_up("write");
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) give_up("write");
    done += static_cast<std::size_t>(written);
  }
  file.reset();
  if (::rename(part.c_str(), path.c_str()) != 0) give_up("name");
}

std::string flight_file_name(int rank) { return fmt::format("rank{}.json", rank); }

}  // namespace lockstep
