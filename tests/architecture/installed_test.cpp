// An installation as users see it: a program outside the source tree finds it through pkg-config, CMake and Meson and
// trains on two ranks; the shared library exports only the public interface; incomplete and mixed installations are
// rejected with a sentence.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/architecture/command.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& tool) { return run_command("sh -c 'command -v " + tool + "'").exit_code == 0; }

// One installation for all cases, as if a package were unpacked into a folder.
class Installed : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = ::testing::TempDir() + "lockstep-installed-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    if (kSanitized || !is_there(LOCKSTEP_MESON)) return;
    installed_ = run_command(
        fmt::format("{} install -C {} --no-rebuild --destdir {}/root", LOCKSTEP_MESON, LOCKSTEP_BUILD_ROOT, folder_));
    prefix_ = folder_ + "/root" + LOCKSTEP_PREFIX;
    libraries_ = prefix_ + "/" + LOCKSTEP_LIBDIR;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a program without the sanitizer cannot use a library with it";
    if (!is_there(LOCKSTEP_MESON)) GTEST_SKIP() << "there is no meson to install with";
    ASSERT_EQ(installed_.exit_code, 0) << installed_.output;
    if (!fs::exists(shared_library()))
      GTEST_SKIP() << "this build has no shared library: meson configure " << LOCKSTEP_BUILD_ROOT
                   << " -Ddefault_library=both";
    here_ = folder_ + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::copy(kOutside, here_);
  }

  static std::string shared_library() { return libraries_ + "/liblockstep.so." LOCKSTEP_PROJECT_VERSION; }

  // lib/cmake if CMake would not search the libraries' folder, for example lib64 on Debian.
  static std::string cmake_folder() {
    return std::string(fs::exists(libraries_ + "/cmake") ? LOCKSTEP_LIBDIR : "lib") + "/cmake/Lockstep";
  }

  // Runs a command in this case's folder.
  CommandEnd run(const std::string& command) const {
    return run_command(fmt::format("env -C {} LD_LIBRARY_PATH={} PKG_CONFIG_PATH={}/pkgconfig {}", here_, libraries_,
                                   libraries_, command));
  }
  // Compiles with pkg-config's flags, as if Lockstep had been configured for this folder.
  CommandEnd compile(const std::string& arguments) const {
    return run(
        fmt::format("sh -c '{} -std=c++20 -O0 {} $(pkg-config --define-variable=prefix={} --cflags --libs lockstep)'",
                    LOCKSTEP_COMPILER, arguments, prefix_));
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(here_ + "/" + name) << text; }

  void expect_two_ranks_train(const std::string& program) const {
    const CommandEnd trained = run(prefix_ + "/bin/lockrun --no-fold -n 2 " + program);
    EXPECT_EQ(trained.exit_code, 0) << trained.output;
    for (const char* line : {"[0] y = 2.00 x + 1.00\n", "[1] y = 2.00 x + 1.00\n"})
      EXPECT_NE(trained.output.find(line), std::string::npos) << line << trained.output;
  }

  static inline const std::string kOutside = LOCKSTEP_SOURCE_ROOT "/tests/architecture/outside";
  static inline std::string folder_, prefix_, libraries_;
  static inline CommandEnd installed_;
  std::string here_;
};

TEST_F(Installed, PkgConfigBuildsAProgramOutsideTheTree) {
  if (!is_there("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  const CommandEnd built = compile("program.cpp -o program");
  ASSERT_EQ(built.exit_code, 0) << built.output;
  expect_two_ranks_train("./program");
  EXPECT_NE(run("ldd program").output.find("liblockstep.so.0 => " + libraries_), std::string::npos)
      << run("ldd program").output;
}

// A consumer's own choice, for example C++23, would come first on the command line and be overridden.
TEST_F(Installed, PkgConfigLeavesTheStandardToTheConsumer) {
  if (!is_there("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  const CommandEnd flags = run("pkg-config --cflags lockstep");
  ASSERT_EQ(flags.exit_code, 0) << flags.output;
  EXPECT_EQ(flags.output.find("-std="), std::string::npos) << flags.output;
}

// Without an installation: with the .pc file that Meson writes to the build folder.
TEST_F(Installed, PkgConfigFindsTheBuildFolder) {
  if (!is_there("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  const std::string uninstalled = LOCKSTEP_BUILD_ROOT "/meson-uninstalled";
  const CommandEnd built = run(fmt::format(
      "env PKG_CONFIG_PATH={} sh -c '{} -std=c++20 -O0 program.cpp -o program $(pkg-config --cflags --libs lockstep)'",
      uninstalled, LOCKSTEP_COMPILER));
  ASSERT_EQ(built.exit_code, 0) << built.output;
  const CommandEnd trained =
      run("env LD_LIBRARY_PATH=" LOCKSTEP_BUILD_ROOT " " + prefix_ + "/bin/lockrun -n 2 ./program");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST_F(Installed, AnOperatorOfOnesOwnNeedsItsOneHeader) {
  if (!is_there("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  const CommandEnd built = compile("operator.cpp -o operator");
  ASSERT_EQ(built.exit_code, 0) << built.output;
  const CommandEnd checked = run("./operator");
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
}

TEST_F(Installed, CMakeBuildsAProgramOutsideTheTree) {
  if (!is_there("cmake")) GTEST_SKIP() << "cmake is not installed";
  const CommandEnd configured =
      run(fmt::format("env 'CXX={}' cmake -G Ninja -B build -DCMAKE_PREFIX_PATH={}", LOCKSTEP_COMPILER, prefix_));
  ASSERT_EQ(configured.exit_code, 0) << configured.output;
  const CommandEnd built = run("cmake --build build");
  ASSERT_EQ(built.exit_code, 0) << built.output;
  expect_two_ranks_train("build/program");
}

// Like Debian's /lib, a link to /usr/lib: CMake searches below / if PATH begins with /bin.
TEST_F(Installed, CMakeFindsItThroughALink) {
  if (!is_there("cmake")) GTEST_SKIP() << "cmake is not installed";
  const std::string top = fs::path(cmake_folder()).begin()->string();
  fs::create_directory_symlink(prefix_ + "/" + top, here_ + "/" + top);
  const CommandEnd configured =
      run(fmt::format("env 'CXX={}' cmake -G Ninja -B build -DCMAKE_PREFIX_PATH={}", LOCKSTEP_COMPILER, here_));
  EXPECT_EQ(configured.exit_code, 0) << configured.output;
}

// Configured here; scripts/test-matrix also builds it, which takes as long as Lockstep itself.
TEST_F(Installed, MesonFindsTheSourcesAsASubproject) {
  fs::create_directory(here_ + "/subprojects");
  fs::create_directory_symlink(LOCKSTEP_SOURCE_ROOT, here_ + "/subprojects/lockstep");
  const CommandEnd configured = run(fmt::format(
      "env 'CXX={}' {} setup build --wrap-mode=nodownload --force-fallback-for=lockstep -Dlockstep:cuda=disabled "
      "-Dlockstep:onednn=disabled -Dlockstep:mpi=disabled -Dlockstep:nccl=disabled -Dlockstep:hwloc=disabled "
      "-Dlockstep:tokenizers=disabled -Dlockstep:sentencepiece=disabled -Dlockstep:onnx=disabled",
      LOCKSTEP_COMPILER, LOCKSTEP_MESON));
  ASSERT_EQ(configured.exit_code, 0) << configured.output;
  const CommandEnd plan = run("ninja -C build -t query program");
  EXPECT_NE(plan.output.find("subprojects/lockstep/liblockstep.a"), std::string::npos) << plan.output;
  EXPECT_EQ(run("ninja -C build -t targets all").output.find("_test"), std::string::npos)
      << "a subproject needs no tests";
  // The features that this build lacks, and how to get them.
  const std::string log = text_of_file(here_ + "/build/meson-logs/meson-log.txt");
  for (const char* part : {"oneDNN", "CUDA", "NCCL", "MPI", "hwloc", "tokenizers", "SentencePiece", "ONNX"})
    EXPECT_FALSE(find_match(log, fmt::format("{} *: NO(?:: .*; .* ha(?:s|ve)| [(]-Dcuda=disabled)", part)).empty())
        << part;
}

// -- the shared library

TEST_F(Installed, TheSharedLibraryHasItsNames) {
  const CommandEnd dynamic = run("readelf --dynamic --wide " + shared_library());
  EXPECT_NE(dynamic.output.find("soname: [liblockstep.so.0]"), std::string::npos) << dynamic.output;
  for (const char* name : {"liblockstep.so", "liblockstep.so.0"})
    EXPECT_EQ(fs::canonical(libraries_ + "/" + name), fs::canonical(shared_library())) << name;
}

std::string text_of_public_headers() {
  std::string text;
  for (const auto& entry : fs::recursive_directory_iterator(LOCKSTEP_SOURCE_ROOT "/include"))
    if (entry.is_regular_file()) text += text_of_file(entry.path().string());
  return text;
}

std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  for (const auto& word : find_matches(text, "([A-Za-z_0-9]+)")) words.insert(word[1]);
  return words;
}

TEST_F(Installed, TheSharedLibraryExportsThePublicInterfaceAlone) {
  const std::string symbols = here_ + "/symbols";
  ASSERT_EQ(
      run("sh -c 'nm --dynamic --defined-only --demangle --format=posix " + shared_library() + " >" + symbols + "'")
          .exit_code,
      0);
  const std::set<std::string> known = words_of(text_of_public_headers());
  int exported = 0;
  // Symbols that are defined once ("T", "D", ...; templates and inline functions are weak: "W"), and the types that
  // exceptions and casts compare.
  for (const auto& symbol :
       find_matches_by_line(text_of_file(symbols), "^((?:typeinfo for |vtable for |.* [TDRB] [0-9a-f]).*)$")) {
    const std::string entity = replace_matches(symbol[1], "^(?:[a-z-]+ )*(?:for|to) ", "");
    if (entity.rfind("lockstep", 0) != 0 || entity.find("{lambda") != std::string::npos)
      continue;  // those of a shared_ptr or std::function
    for (const std::string& word : words_of(entity.substr(0, entity.find_first_of("(<[ "))))
      EXPECT_EQ(known.count(word), 1u) << word << " is in no public header: " << symbol[1];
    ++exported;
  }
  EXPECT_GT(exported, 300) << text_of_file(symbols).substr(0, 1000);
}

// -- two versions

// The text with the number of the next version.
std::string of_next_version(const std::string& text) {
  return replace_matches(replace_matches(text, "0_2", "0_3"), "\"0[.]2[.]", "\"0.3.");
}
constexpr const char* kSentence = "need_library_0_2__install_both_of_one_version_and_compile_again";

TEST_F(Installed, TheLinkerReportsHeadersOfAnotherVersion) {
  fs::create_directories(here_ + "/lockstep/core");
  write("lockstep/core/version.h",
        of_next_version(text_of_file(LOCKSTEP_SOURCE_ROOT "/include/lockstep/core/version.h")));
  write("small.cpp", "#include <lockstep/core/error.h>\nint main() {}\n");
  const CommandEnd shared = compile("-I. small.cpp -o small");
  const CommandEnd whole = run(fmt::format("{} -std=c++20 -I. -I{}/include small.cpp {}/liblockstep.a -lfmt -o small",
                                           LOCKSTEP_COMPILER, prefix_, libraries_));
  for (const CommandEnd& linked : {shared, whole}) {
    EXPECT_NE(linked.exit_code, 0) << linked.output;
    EXPECT_NE(linked.output.find("lockstep_headers_0_3_need_library_0_3__install_both"), std::string::npos)
        << linked.output;
  }
}

TEST_F(Installed, TheLoaderReportsALibraryOfAnotherVersion) {
  write("small.cpp", "#include <lockstep/core/error.h>\nint main() {}\n");
  const CommandEnd linked = compile("-Wl,--no-as-needed small.cpp -o small");
  ASSERT_EQ(linked.exit_code, 0) << linked.output;
  EXPECT_EQ(run("./small").exit_code, 0) << run("./small").output;
  write("next.cpp", of_next_version("extern \"C\" const char lockstep_headers_0_2_need = 1;\n"));
  const CommandEnd next =
      run(LOCKSTEP_COMPILER " -shared -fPIC next.cpp -Wl,-soname,liblockstep.so.0 -o liblockstep.so.0");
  ASSERT_EQ(next.exit_code, 0) << next.output;
  const CommandEnd started = run("env LD_LIBRARY_PATH=. ./small");
  EXPECT_EQ(started.exit_code, 127) << "the loader's code for a program that it cannot start";
  EXPECT_NE(started.output.find(kSentence), std::string::npos) << started.output;
}

// -- an installation that is incomplete

class HalfInstalled : public Installed {
 protected:
  void SetUp() override {
    Installed::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!is_there("cmake")) GTEST_SKIP() << "cmake is not installed";
    fs::create_directories(file("include/lockstep/core"));
    fs::create_directories(library(""));
    fs::create_directories(file(cmake_folder()));
    fs::copy(prefix_ + "/include/lockstep/core/version.h", file("include/lockstep/core"));
    fs::copy(prefix_ + "/" + cmake_folder(), file(cmake_folder()));
    fs::create_symlink("liblockstep.so." LOCKSTEP_PROJECT_VERSION, library("liblockstep.so"));
    std::ofstream(library("liblockstep.so." LOCKSTEP_PROJECT_VERSION))
        << "as good as a library: CMake does not read it";
    write("find.cmake", "find_package(Lockstep ${WANTED} REQUIRED)\n");
  }
  std::string file(const std::string& name) const { return here_ + "/half/" + name; }
  std::string library(const std::string& name) const { return file(LOCKSTEP_LIBDIR "/" + name); }

  // The error with single spaces between words, because CMake breaks lines.
  std::string refusal(const std::string& wanted = "") const {
    const CommandEnd end =
        run(fmt::format("cmake -DLockstep_DIR={} -DWANTED={} -P find.cmake", file(cmake_folder()), wanted));
    EXPECT_NE(end.exit_code, 0) << end.output;
    return replace_matches(end.output, "\\s+", " ");
  }
};

TEST_F(HalfInstalled, HeadersAreMissing) {
  fs::remove_all(file("include"));
  EXPECT_NE(refusal().find("version.h does not exist: install liblockstep-dev"), std::string::npos) << refusal();
}

TEST_F(HalfInstalled, TheSharedLibraryIsMissing) {
  fs::remove(library("liblockstep.so." LOCKSTEP_PROJECT_VERSION));
  EXPECT_NE(refusal().find("install liblockstep0 and liblockstep-dev of version " LOCKSTEP_PROJECT_VERSION),
            std::string::npos)
      << refusal();
}

TEST_F(HalfInstalled, HeadersAreOfAnotherVersion) {
  const std::string header = file("include/lockstep/core/version.h"), next = of_next_version(text_of_file(header));
  std::ofstream(header) << next;
  EXPECT_NE(refusal().find("the library is of version " LOCKSTEP_PROJECT_VERSION ", but"), std::string::npos)
      << refusal();
  EXPECT_NE(refusal().find("\"0.3.0\": install both of one version"), std::string::npos) << refusal();
}

TEST_F(HalfInstalled, OnlyItsOwnInterfaceIsAccepted) {
  for (const char* wanted : {"0.1", "0.3", "1.0", "0.2.1", "0.20"})
    EXPECT_NE(refusal(wanted).find(fmt::format("compatible with requested version \"{}\"", wanted)), std::string::npos)
        << refusal(wanted);
}

}  // namespace
}  // namespace lockstep::testing
