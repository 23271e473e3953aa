// Dependencies point one way for calls as well: which layer's objects refer to symbols of which other layer. An include
// does not show it when a layer declares a function that another one defines.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "tests/architecture/command.h"
#include "tests/architecture/layers.h"

namespace {

struct Symbols {
  std::set<std::string> defined, undefined;
};

// Reads the table of all objects of a static library. `text` is nm's output in POSIX format: "name type ...".
Symbols symbols_of(const std::string& text) {
  Symbols symbols;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, type;
    if (!(words >> name >> type) || type.size() != 1) continue;
    if (type == "U" || type == "v" || type == "w")
      symbols.undefined.insert(name);
    else if (type != "V" && type != "W" &&
             type != "u")  // inline functions and templates are in every layer that uses them
      symbols.defined.insert(name);
  }
  return symbols;
}

// "core -> kernels: cpu_kernels()", for each symbol that a layer takes from a layer that it may not know.
std::set<std::string> forbidden_calls(const std::map<std::string, Symbols>& layers) {
  std::map<std::string, std::string> layer_of_symbol;
  for (const auto& [layer, symbols] : layers)
    for (const std::string& name : symbols.defined) layer_of_symbol[name] = layer;
  std::set<std::string> calls;
  for (const auto& [layer, symbols] : layers)
    for (const std::string& name : symbols.undefined) {
      const auto owner = layer_of_symbol.find(name);
      if (owner == layer_of_symbol.end() || owner->second == layer) continue;
      if (kMayInclude.at(layer).count(owner->second) == 0) calls.insert(layer + " -> " + owner->second + ": " + name);
    }
  return calls;
}

// Calls against the arrows that have a reason.
const std::set<std::string> kAllowed = {
    // A program takes an object of a static library only when it refers to it, so kernels cannot register themselves.
    "core -> kernels: _ZN8lockstep11cpu_kernelsEv",
};

TEST(LinkArrows, NoCallPointsBack) {
  if (lockstep::testing::run_command("sh -c 'command -v nm'").exit_code != 0) GTEST_SKIP() << "nm is not installed";
  std::map<std::string, Symbols> layers;
  for (const auto& [layer, _] : kMayInclude) {
    const std::string library = LOCKSTEP_BUILD_ROOT "/liblockstep_" + layer + ".a";
    if (!std::filesystem::exists(library)) continue;  // no library of its own: cuda, and what all kernels share
    layers[layer] = symbols_of(lockstep::testing::run_command("nm -P " + library, std::string::npos).output);
    EXPECT_FALSE(layers[layer].undefined.empty()) << library;
  }
  ASSERT_GE(layers.size(), 13U) << "no library for each layer below " LOCKSTEP_BUILD_ROOT;
  const std::set<std::string> calls = forbidden_calls(layers);
  for (const std::string& call : calls) EXPECT_EQ(kAllowed.count(call), 1U) << call << " (c++filt shows its name)";
  for (const std::string& call : kAllowed) EXPECT_EQ(calls.count(call), 1U) << call << ": nothing needs this any more";
}

TEST(LinkArrows, ACallThatPointsBackIsNoticed) {
  const Symbols core = symbols_of("lib[x.o]:\nf T 0 1\nh U         \n"),
                kernels = symbols_of("h T 0 1\nf U\ng W 0 1\n");
  EXPECT_EQ(forbidden_calls({{"core", core}, {"kernels", kernels}}), std::set<std::string>{"core -> kernels: h"});
}

}  // namespace
