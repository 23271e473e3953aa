// Dependencies point one way. This test reads every #include of the library and fails on an arrow that the design does
// not have. It also checks, on invented sources, that it would notice.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/architecture/layers.h"
#include "tests/architecture/sources.h"
#include "tests/support/pattern.h"

namespace {

// The layer that a path belongs to: include/lockstep/<layer>/, src/<layer>/, kernels/; empty for programs and tests.
std::string layer_of(const std::string& path) {
  if (path.rfind("kernels/cuda/", 0) == 0) return "cuda";
  if (!lockstep::testing::find_match(path, "^kernels/(?:updates/)?[a-z_0-9]+\\.h$").empty()) return "all kernels";
  const auto match = lockstep::testing::find_match(path, "^(?:include/lockstep|lockstep|src)/([a-z]+)/|^(kernels)/");
  return match.empty() ? "" : match[1] + match[2];
}

// A family of kernels (core/kernel_families.h): a layer above core declares the kernels that its operators need, and
// each device implements them. So kernels may include this header of the layer and no other, and the header may include
// only core.
bool declares_family(const std::string& path) {
  return !lockstep::testing::find_match(path, "^(?:include/)?lockstep/(?!core/)[a-z]+/[a-z_0-9]+_kernels\\.h$").empty();
}

std::vector<std::string> includes_of(const std::string& text) {
  std::vector<std::string> found;
  for (const auto& match :
       lockstep::testing::find_matches_by_line(text, R"(^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">])"))
    found.push_back(match[1]);
  return found;
}

// Sentences about forbidden arrows; empty if there are none.
std::vector<std::string> forbidden_arrows(const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  const std::string layer = layer_of(path);
  if (layer.empty()) return faults;
  const auto allowed = kMayInclude.find(layer);
  if (allowed == kMayInclude.end()) return {path + ": layer '" + layer + "' is not in the design"};
  for (const std::string& included : includes_of(text)) {
    if (path.rfind("include/", 0) == 0 && included.rfind("src/", 0) == 0)
      faults.push_back(path + " is public but includes " + included);
    if (included == "lockstep/lockstep.h") faults.push_back(path + " includes the header that includes everything");
    const std::string target = layer_of(included);
    if (declares_family(path) && !target.empty() && target != "core")
      faults.push_back(path + " declares kernels but includes " + included);
    if (declares_family(included) && (layer == "kernels" || layer == "cuda")) continue;
    if (!target.empty() && target != layer && allowed->second.count(target) == 0)
      faults.push_back(path + ": " + layer + " may not include " + target + " (" + included + ")");
  }
  return faults;
}

// Visits the sources of the library and its kernels.
template <typename Visit> int for_each_source(Visit&& visit) {
  return visit_sources({"include", "src", "kernels"}, visit);
}

TEST(IncludeArrows, NoneOfTheLibraryPointsBack) {
  std::vector<std::string> faults;
  const int files = for_each_source([&](const std::string& path, const std::string& text) {
    for (std::string& fault : forbidden_arrows(path, text)) faults.push_back(std::move(fault));
  });
  EXPECT_GT(files, 50) << "the source root is wrong: " LOCKSTEP_SOURCE_ROOT;
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
}

// -- rooms of comm, as CONTRIBUTING.md lists them

std::string text_of(const std::string& path) {
  std::ifstream file(LOCKSTEP_SOURCE_ROOT "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

using Rooms = std::map<std::string, std::set<std::string>>;  // a room, and those that it may include

Rooms rooms_of(const std::string& contributing) {
  Rooms rooms;
  const auto block = lockstep::testing::find_match(contributing, "```text\\n(net:\\n[^`]*)```");
  if (block.empty()) return rooms;
  for (const auto& line : lockstep::testing::find_matches_by_line(block[1], "^([a-z/]+):(.*)$")) {
    std::istringstream words(line[2]);
    rooms[line[1]] = {std::istream_iterator<std::string>(words), {}};
  }
  return rooms;
}

// A public header belongs to the room that implements it.
const std::map<std::string, std::string> kRoomOfPublicHeader = {
    {"endpoint.h", "net"},        {"store.h", "store"},           {"operation.h", "operation"},
    {"work.h", "operation"},      {"flight_note.h", "operation"}, {"capabilities.h", "operation"},
    {"backend.h", "call"},        {"bootstrap.h", "rendezvous"},  {"backend_context.h", "rendezvous"},
    {"group_options.h", "group"}, {"objects.h", "group"},         {"process_group.h", "group"},
    {"agreement.h", "group"},     {"should_stop.h", "group"},
};

// "" for files outside comm; "?" for a file of comm that has no room.
std::string room_of(const std::string& path) {
  const auto is_public = lockstep::testing::find_match(path, "^(?:include/)?lockstep/comm/([a-z_]+\\.h)$");
  if (!is_public.empty()) {
    const auto found = kRoomOfPublicHeader.find(is_public[1]);
    return found == kRoomOfPublicHeader.end() ? "?" : found->second;
  }
  const auto inside = lockstep::testing::find_match(path, "^src/comm/(?:(.*)/)?[a-z_]+\\.(?:h|cpp)$");
  if (inside.empty()) return "";
  return inside[1].empty() ? "backends" : inside[1];
}

// Sentences about forbidden arrows between rooms. Allowed ones are added to `seen`, as "room -> room".
std::vector<std::string> forbidden_room_arrows(const Rooms& rooms, const std::string& path, const std::string& text,
                                               std::set<std::string>& seen) {
  std::vector<std::string> faults;
  const std::string room = room_of(path);
  if (room.empty()) return faults;
  const auto allowed = rooms.find(room);
  if (allowed == rooms.end()) return {path + ": CONTRIBUTING.md lists no room '" + room + "'"};
  for (const std::string& included : includes_of(text)) {
    if (included == "src/comm/mpi/mpi_folder.h") continue;  // generated by the build: the folder of libmpi
    const std::string target = room_of(included);
    if (target.empty() || target == room) continue;
    seen.insert(room + " -> " + target);
    if (allowed->second.count(target) == 0)
      faults.push_back(path + ": room " + room + " may not include " + target + " (" + included + ")");
  }
  return faults;
}

TEST(RoomsOfComm, IncludeOnlyThoseThatContributingLists) {
  const Rooms rooms = rooms_of(text_of("CONTRIBUTING.md"));
  ASSERT_GT(rooms.size(), 10u);
  std::set<std::string> seen;
  for_each_source([&](const std::string& path, const std::string& text) {
    for (const std::string& fault : forbidden_room_arrows(rooms, path, text, seen)) ADD_FAILURE() << fault;
  });
  for (const auto& [room, others] : rooms)
    for (const std::string& other : others)
      EXPECT_TRUE(seen.count(room + " -> " + other) == 1) << "no file needs " << room << " -> " << other;
}

// A room may include only rooms listed above it, so there are no cycles.
TEST(RoomsOfComm, AreListedFromBelow) {
  std::set<std::string> above;
  const std::string contributing = text_of("CONTRIBUTING.md");
  const Rooms rooms = rooms_of(contributing);
  for (const auto& line : lockstep::testing::find_matches_by_line(contributing, "^([a-z/]+):")) {
    const auto room = rooms.find(line[1]);
    if (room == rooms.end()) continue;
    for (const std::string& other : room->second)
      EXPECT_TRUE(above.count(other) == 1) << room->first << " -> " << other;
    above.insert(room->first);
  }
  EXPECT_EQ(above.size(), rooms.size());
}

TEST(RoomsOfComm, AnArrowThatIsNotListedIsNoticed) {
  const Rooms rooms = rooms_of("```text\nnet:\nstore: net\n```\n");
  std::set<std::string> seen;
  EXPECT_EQ(rooms.size(), 2u);
  EXPECT_TRUE(
      forbidden_room_arrows(rooms, "src/comm/store/x.cpp", "#include \"src/comm/net/socket.h\"\n", seen).empty());
  EXPECT_EQ(seen, std::set<std::string>{"store -> net"});
  EXPECT_EQ(forbidden_room_arrows(rooms, "src/comm/net/x.h", "#include \"lockstep/comm/store.h\"\n", seen).size(), 1u);
  EXPECT_EQ(forbidden_room_arrows(rooms, "src/comm/net/x.h", "#include \"lockstep/comm/unheard_of.h\"\n", seen).size(),
            1u);
  EXPECT_EQ(forbidden_room_arrows(rooms, "src/comm/cellar/x.h", "", seen).size(), 1u);
  EXPECT_TRUE(forbidden_room_arrows(rooms, "src/core/x.h", "", seen).empty());
}

// Backends are chosen by name in one file.
TEST(RoomsOfComm, OnlyBackendsCppNamesThem) {
  for_each_source([&](const std::string& path, const std::string& text) {
    const std::string room = room_of(path);
    if (room != "group" && room != "call" && room != "operation" && room != "rendezvous") return;
    if (path.rfind("include/", 0) == 0) return;  // their comments mention backends
    EXPECT_TRUE(lockstep::testing::find_matches_by_line(text, R"--("(nccl|host|ring|local|mpi|delay)")--").empty())
        << path << " names a backend";
  });
}

TEST(IncludeArrows, TheReducerKnowsNeitherTensorsNorAutograd) {
  int files = 0;
  for_each_source([&](const std::string& path, const std::string& text) {
    if (layer_of(path) != "reduce") return;
    ++files;
    for (const std::string& included : includes_of(text)) {
      const std::string target = layer_of(included);
      EXPECT_TRUE(target.empty() || target == "reduce" || target == "comm" || target == "core")
          << path << " includes " << included;
    }
  });
  EXPECT_GE(files, 2);
}

TEST(IncludeArrows, CudaIsNamedOnlyBehindTheSeams) {
  constexpr const char* kConditional = R"(^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b.*CUDA)";
  for_each_source([&](const std::string& path, const std::string& text) {
    const bool behind_seam = path.rfind("kernels/cuda/", 0) == 0 || path.rfind("src/comm/nccl/", 0) == 0 ||
                             path == "src/core/device/devices.cpp" || path == "src/comm/backends.cpp";
    EXPECT_TRUE(behind_seam || lockstep::testing::find_matches_by_line(text, kConditional).empty())
        << path << " tests for CUDA in the preprocessor";
  });
}

TEST(IncludeArrows, AnArrowThatPointsBackIsNoticed) {
  EXPECT_EQ(forbidden_arrows("src/reduce/x.cpp", "#include \"lockstep/tensor/tensor.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("include/lockstep/core/x.h", "  #  include <lockstep/comm/store.h>\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("include/lockstep/comm/x.h", "#include \"src/comm/y.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("src/nn/x.cpp", "#include \"lockstep/lockstep.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("src/magic/x.cpp", "").size(), 1u);
  EXPECT_EQ(forbidden_arrows("kernels/cpu/x.cpp", "#include \"lockstep/data/loader.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("kernels/cuda/x.cu", "#include \"src/data/x_kernels.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("src/core/x.cpp", "#include \"lockstep/data/x_kernels.h\"\n").size(), 1u);
  EXPECT_EQ(forbidden_arrows("include/lockstep/data/x_kernels.h", "#include \"lockstep/data/dataset.h\"\n").size(), 1u);
  EXPECT_TRUE(forbidden_arrows("kernels/cuda/x.cu", "#include \"lockstep/data/x_kernels.h\"\n").empty());
  EXPECT_TRUE(forbidden_arrows("src/ddp/x.cpp", "#include \"lockstep/reduce/reducer.h\"\n#include <vector>\n").empty());
  EXPECT_TRUE(forbidden_arrows("examples/x.cpp", "#include <lockstep/lockstep.h>\n").empty());
}

}  // namespace
