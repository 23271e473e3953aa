// Dependencies point one way. This test reads every #include of the library and fails on an arrow that the design does
// not have. It is given the source root and also proves, on invented sources, that it would notice.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/architecture/sources.h"
#include "tests/support/pattern.h"

namespace {

// core <- tensor <- autograd <- nn, optim, data;  core <- comm <- reduce;  ddp joins the two;  train, launch above.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"kernels", {"core"}},
    {"cuda", {"core"}},  // the CUDA part: one library, whose kernels lie in kernels/cuda
    {"tensor", {"core"}},
    {"autograd", {"core", "tensor"}},
    {"nn", {"core", "tensor", "autograd"}},
    {"optim", {"core", "tensor", "autograd"}},
    {"data", {"core", "tensor", "autograd"}},
    {"comm", {"core"}},
    {"reduce", {"core", "comm"}},
    {"ddp", {"core", "comm", "reduce", "tensor", "autograd", "nn"}},
    {"train", {"core", "comm", "reduce", "tensor", "autograd", "nn", "optim", "data", "ddp"}},
    {"launch", {"core", "comm"}},
    {"diagnose", {"core", "comm"}},
};

// The layer that a path belongs to: include/lockstep/<layer>/, src/<layer>/, kernels/; empty for programs and tests.
std::string layer_of(const std::string& path) {
  if (path.rfind("kernels/cuda/", 0) == 0) return "cuda";
  const auto match = lockstep::testing::find_match(path, "^(?:include/lockstep|lockstep|src)/([a-z]+)/|^(kernels)/");
  return match.empty() ? "" : match[1] + match[2];
}

// A family of kernels (core/kernel_families.h): a layer above core says which kernels its operators want, each device implements them. So
// kernels include this header of the layer and no other, and it includes nothing of the layer but core.
bool declares_family(const std::string& path) {
  return !lockstep::testing::find_match(path, "^(?:include/)?lockstep/(?!core/)[a-z]+/[a-z_0-9]+_kernels\\.h$").empty();
}

std::vector<std::string> includes_of(const std::string& text) {
  std::vector<std::string> found;
  for (const auto& match : lockstep::testing::find_matches_by_line(text, R"(^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">])"))
    found.push_back(match[1]);
  return found;
}

// Sentences about arrows that may not be; empty when all is well.
std::vector<std::string> forbidden_arrows(const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  const std::string layer = layer_of(path);
  if (layer.empty()) return faults;
  const auto allowed = kMayInclude.find(layer);
  if (allowed == kMayInclude.end()) return {path + ": layer '" + layer + "' is not in the design"};
  for (const std::string& included : includes_of(text)) {
    if (path.rfind("include/", 0) == 0 && included.rfind("src/", 0) == 0) faults.push_back(path + " is public but includes " + included);
    if (included == "lockstep/lockstep.h") faults.push_back(path + " includes the header that includes everything");
    const std::string target = layer_of(included);
    if (declares_family(path) && !target.empty() && target != "core") faults.push_back(path + " declares kernels but includes " + included);
    if (declares_family(included) && (layer == "kernels" || layer == "cuda")) continue;
    if (!target.empty() && target != layer && allowed->second.count(target) == 0)
      faults.push_back(path + ": " + layer + " may not include " + target + " (" + included + ")");
  }
  return faults;
}

// Of the library and its kernels.
template <typename Visit>
int for_each_source(Visit&& visit) {
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

TEST(IncludeArrows, TheReducerKnowsNeitherTensorsNorAutograd) {
  int files = 0;
  for_each_source([&](const std::string& path, const std::string& text) {
    if (layer_of(path) != "reduce") return;
    ++files;
    for (const std::string& included : includes_of(text)) {
      const std::string target = layer_of(included);
      EXPECT_TRUE(target.empty() || target == "reduce" || target == "comm" || target == "core") << path << " includes " << included;
    }
  });
  EXPECT_GE(files, 2);
}

TEST(IncludeArrows, CudaIsNamedOnlyBehindTheSeams) {
  constexpr const char* kConditional = R"(^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b.*CUDA)";
  for_each_source([&](const std::string& path, const std::string& text) {
    const bool behind_seam = path.rfind("kernels/cuda/", 0) == 0 || path.rfind("src/comm/nccl/", 0) == 0 ||
                             path == "src/core/devices.cpp" || path == "src/comm/backends.cpp";
    EXPECT_TRUE(behind_seam || lockstep::testing::find_matches_by_line(text, kConditional).empty())
        << path << " asks for CUDA by preprocessor";
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
