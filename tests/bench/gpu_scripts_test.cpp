// scripts/test-gpu on machines without a GPU: its output and its exit code.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TestGpu, ListsItsStages) {
  Child list(script("test-gpu", {"--list"}));
  ASSERT_EQ(list.wait(60s), 0) << list.errors();
  for (const char* stage : {"smoke", "devices", "tuning", "memcheck", "racecheck", "ranks", "default", "hooks",
                            "conformance", "overlap", "kill", "graph"})
    EXPECT_THAT(list.output(), HasSubstr(stage));
  Child wrong(script("test-gpu", {"everything"}));
  EXPECT_EQ(wrong.wait(60s), 2);
  EXPECT_THAT(wrong.errors(), HasSubstr("no stage everything: there are smoke, devices,"));
}

// As on a machine that has a GPU but whose driver or CUDA part is broken.
TEST(TestGpu, AnUnusableGpuIsAFailureWithItsReasonOrASkipIfAllowed) {
  Child strict(script("test-gpu", {"devices", "conformance", "kill"}),
               {.environment = kNoGpu, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(strict.wait(120s), 1) << strict.output() << strict.errors();
  EXPECT_THAT(strict.output(),
              HasSubstr("no GPU: the CUDA part cannot be loaded: the file /nonexistent.so does not exist"));
  EXPECT_THAT(strict.output(), ContainsRegex("=== devices: 0 passed, [1-9][0-9]* failed, 0 skipped"));
  EXPECT_THAT(strict.output(), ContainsRegex("=== conformance: [01] passed, 3 failed, [01] skipped"));
  EXPECT_THAT(strict.output(), HasSubstr("=== kill: 0 passed, 1 failed, 0 skipped"));
  EXPECT_THAT(strict.output(), Not(HasSubstr(": Failure\n"))) << "the reason is printed once, not for every test";
  Child lenient(script("test-gpu", {"devices", "conformance", "kill", "--allow-skip"}),
                {.environment = kNoGpu, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(lenient.wait(120s), 0) << lenient.output() << lenient.errors();
  EXPECT_THAT(lenient.output(), ContainsRegex("=== devices: 0 passed, 0 failed, [1-9][0-9]* skipped"));
  EXPECT_THAT(lenient.output(), HasSubstr("=== kill: 0 passed, 0 failed, 1 skipped"));
}

// One test has no GPU. Another one fails for a different reason and quotes a child's words about GPUs; its failure is
// shown in full.
TEST(TestGpu, OnlyATestItselfReportsThatThereIsNoGpu) {
  namespace fs = std::filesystem;
  const fs::path build = ::testing::TempDir() + "test-gpu-quoted-" + std::to_string(::getpid()),
                 program = build / "tests/gpu/gpu_ranks_test";
  fs::create_directories(program.parent_path());
  std::ofstream(program) << R"(#!/bin/sh
for flag in "$@"; do case "$flag" in --gtest_output=xml:*) report="${flag#--gtest_output=xml:}" ;; esac; done
cat > "$report" <<'END'
<testsuites><testsuite name="Gpu">
<testcase classname="Gpu" name="Missing" status="run"><failure message="gpu.h:43&#x0A;Failed&#x0A;no GPU: no driver"/></testcase>
<testcase classname="Gpu" name="Quotes" status="run"><failure message="ranks_test.cpp:7&#x0A;Failed&#x0A;rank 1 lost&#x0A;no GPU: said a child"/></testcase>
</testsuite></testsuites>
END
echo "ranks_test.cpp:7: Failure"
exit 1
)";
  fs::permissions(program, fs::perms::owner_all);
  Child kill(script("test-gpu", {"kill"}), {.environment = {{"BUILD", build.string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_THAT(kill.output(), HasSubstr("failed 1: Gpu.Missing: no GPU: no driver\n"));
  EXPECT_THAT(kill.output(),
              HasSubstr("failed 1: Gpu.Quotes: ranks_test.cpp:7\nFailed\nrank 1 lost\nno GPU: said a child\n"));
  EXPECT_THAT(kill.output(), HasSubstr("ranks_test.cpp:7: Failure\n")) << "a run with another failure is shown in full";
  fs::remove_all(build);
}

// The program's first test passes and its second one hangs.
TEST(TestGpu, PrintsEachResultAtOnceAndEndsAtTheLimit) {
  const FakeBuild fake("test-gpu-streams-");
  fake.program("tests/gpu/gpu_ranks_test", R"(echo 'Running main() from gmock_main.cc'
echo '[ RUN      ] Kill.First'
echo 'a word of the test'
echo '[       OK ] Kill.First (12 ms)'
echo '[ RUN      ] Kill.Second'
sleep 600)");
  Child kill(script("test-gpu", {"kill", "overlap", "--time-limit", "4"}),
             {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_TRUE(kill.nothing_left());
  EXPECT_THAT(kill.output(), HasSubstr("a word of the test\nOK       Kill.First (12 ms)\n"));
  EXPECT_THAT(kill.output(), ContainsRegex("failed 1: gpu_ranks_test: has not ended after [0-9] s"));
  EXPECT_THAT(kill.output(), ContainsRegex("skipped 1: no time is left of the 4.0 s"));
  EXPECT_THAT(kill.output(), HasSubstr("libcudnn.so.9 ")) << "it lists the libraries, or why they are missing";
}

TEST(TestGpu, SmokePrintsWhichEnginesRemain) {
  const FakeBuild fake("test-gpu-engines-");
  const std::string none = "echo '[ RUN      ] A.B'; echo '[       OK ] A.B (1 ms)'; exit 1";
  fake.program("tests/gpu/gpu_test", none);
  fake.program("tests/gpu/gpu_ranks_test", none);
  fake.program("tests/kernels/kernels_against_reference_test", R"(echo "level $LOCKSTEP_LOG_LEVEL"
echo '[ RUN      ] Conv.First'
for again in 1 2; do echo 'lockstep debug: cuDNN: engines that remain for a convolution: eng5, eng7'; done
echo 'lockstep debug (rank 0): something else'
echo '[       OK ] Conv.First (12 ms)'
exit 1)");
  Child smoke(script("test-gpu", {"smoke"}), {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(smoke.wait(60s), 1) << smoke.errors();
  EXPECT_THAT(
      smoke.output(),
      HasSubstr(
          "level debug\ncuDNN: engines that remain for a convolution: eng5, eng7\nOK       Conv.First (12 ms)\n"));
}

// Tuning takes up to ten engines for each convolution; results are compared without it.
TEST(TestGpu, TunesInAStageOfItsOwn) {
  const FakeBuild fake("test-gpu-tuning-");
  const std::string shows =
      R"(echo "$1: tunes $LOCKSTEP_CUDNN_AUTOTUNE, deterministic $LOCKSTEP_DETERMINISTIC"; exit 1)";
  for (const char* program : {"gpu/gpu_test", "gpu/gpu_ranks_test", "kernels/kernels_against_reference_test"})
    fake.program("tests/" + std::string(program), shows);
  fake.program("tests/gpu/gpu_test", R"(echo 'lockstep debug: cuDNN: built eng7 in 1500 ms for a convolution'
echo 'lockstep debug: cuDNN: the handle is there'
)" + shows);
  const std::map<std::string, std::string> environment = {{"BUILD", fake.folder().string()},
                                                          {"LOCKSTEP_CUDNN_AUTOTUNE", "1"}};
  Child all(script("test-gpu", {"smoke", "devices", "ranks", "hooks", "conformance", "overlap", "kill", "graph"}),
            {.environment = environment});
  EXPECT_EQ(all.wait(60s), 1) << all.errors();
  EXPECT_THAT(all.output(), HasSubstr("GpuDevice.*: tunes 0, deterministic 1"));
  EXPECT_THAT(all.output(), HasSubstr("--gtest_filter=-GpuTuning.*: tunes 0, deterministic 1"));
  EXPECT_THAT(all.output(), Not(HasSubstr("tunes 1")));
  EXPECT_THAT(all.output(), Not(HasSubstr("deterministic \n")));
  Child tuning(script("test-gpu", {"tuning"}), {.environment = environment});
  EXPECT_EQ(tuning.wait(60s), 1) << tuning.errors();
  EXPECT_THAT(tuning.output(), HasSubstr("--gtest_filter=GpuTuning.*: tunes 1, deterministic 1\n"));
  EXPECT_THAT(tuning.output(), HasSubstr("\ncuDNN: built eng7 in 1500 ms for a convolution\n"));
  EXPECT_THAT(tuning.output(), Not(HasSubstr("the handle"))) << "only messages about engines";
}

TEST(TestGpu, RunsTheTestsThatAreNamed) {
  const FakeBuild fake("test-gpu-filter-");
  fake.program("tests/gpu/gpu_ranks_test", R"(case "$*" in
*--gtest_list_tests*) printf 'GpuKill.\n  First\nGpuKill/More.\n  Second/2  # GetParam() = 2\n'; exit 0 ;;
esac
echo "called with $1"; exit 1)");
  Child kill(script("test-gpu", {"kill", "--filter", "*Second*:*Third"}),
             {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_THAT(kill.output(), HasSubstr("called with --gtest_filter=GpuKill/More.Second/2\n"));
}

TEST(TestGpu, AFilterThatRunsNothingFails) {
  const FakeBuild fake("test-gpu-nothing-");
  const std::map<std::string, std::string> environment = {{"BUILD", fake.folder().string()}};
  fake.program("tests/gpu/gpu_ranks_test", R"(printf 'GpuKill.\n  First\n')");
  for (const char* filter : {"*Frist", "-*First"}) {
    Child nothing(script("test-gpu", {"kill", "--filter=" + std::string(filter)}), {.environment = environment});
    EXPECT_EQ(nothing.wait(60s), 1) << nothing.output();
    EXPECT_THAT(nothing.output(), HasSubstr("no test matches " + std::string(filter)));
  }
  fake.program("tests/gpu/gpu_ranks_test", "echo 'no libcudnn.so.9 here' >&2; exit 127");
  Child broken(script("test-gpu", {"kill", "--filter", "*First"}), {.environment = environment});
  EXPECT_EQ(broken.wait(60s), 1);
  EXPECT_THAT(broken.output(),
              HasSubstr("failed 1: gpu_ranks_test: cannot list its tests: exit 127: no libcudnn.so.9 here\n"));
}

// A source tree that contains only the scripts, with its own ninja.
class FakeTree : public FakeBuild {
 public:
  explicit FakeTree(const std::string& name) : FakeBuild(name) {
    std::filesystem::create_directories(folder() / "scripts");
    for (const char* file : {"test-gpu", "gpu_programs.py"})
      std::filesystem::copy_file(std::filesystem::path(SCRIPTS) / file, folder() / "scripts" / file);
    program("scripts/dependencies", "echo no packages; exit 1");
  }
  void add_bundle() const {
    program("build-bundle/lockstep/scripts/test-gpu", "");
    std::ofstream(folder() / "build-bundle/lockstep/scripts/test-gpu")
        << "import sys\nprint('the bundle does', sys.argv[1:])\n";
  }
  std::unique_ptr<Child> test_gpu(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {"python3", (folder() / "scripts/test-gpu").string(), "kill"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return std::make_unique<Child>(
        command, ChildOptions{.environment = {{"PATH", (folder() / "path").string() + ":" + std::getenv("PATH")}},
                              .unset = {"BUILD"}});
  }
};

// As on a machine without packages and compilers.
TEST(TestGpu, UsesABundleWhereItCannotBuild) {
  const FakeTree tree("test-gpu-bundle-");
  tree.program("scripts/configure", "echo no meson; exit 1");
  const auto none = tree.test_gpu({});
  EXPECT_EQ(none->wait(60s), 1);
  EXPECT_THAT(none->errors(), HasSubstr("Make them elsewhere by `scripts/bundle`, and bring build-bundle along"));
  EXPECT_THAT(none->output(), ContainsRegex("libcudnn.so.9 (.|\n)*no packages\n"))
      << "the parts that need no build come first";
  tree.add_bundle();
  const auto there = tree.test_gpu({});
  EXPECT_EQ(there->wait(60s), 0) << there->errors();
  EXPECT_THAT(there->output(), HasSubstr("the bundle does ['kill']"));
}

// As on a machine with compilers but without nvcc.
TEST(TestGpu, UsesABundleWhereTheBuildWouldHaveNoCudaPart) {
  const FakeTree tree("test-gpu-no-cuda-");
  tree.program("scripts/configure", "exit 0");
  tree.program("path/ninja",
               "case \"$*\" in *' -t targets '*) echo 'launcher/lockrun: phony' ;; *) touch \"$0.built\" ;; esac");
  const auto none = tree.test_gpu({});
  EXPECT_EQ(none->wait(60s), 1);
  EXPECT_THAT(none->output(), HasSubstr("the build has no CUDA part: its summary says why"));
  EXPECT_TRUE(std::filesystem::exists(tree.folder() / "path/ninja.built"))
      << "without a bundle there is no alternative";
  tree.add_bundle();
  const auto there = tree.test_gpu({});
  EXPECT_EQ(there->wait(60s), 0) << there->errors();
  EXPECT_THAT(there->output(), HasSubstr("the bundle does ['kill']"));
  tree.program("path/ninja",
               "case \"$*\" in *' -t targets '*) printf 'a: b\\nsrc/cuda/liblockstep_cuda.so: c\\n' ;; esac");
  const auto both = tree.test_gpu({});
  EXPECT_EQ(both->wait(60s), 1);
  EXPECT_THAT(both->output(), Not(HasSubstr("the bundle does"))) << "a local build comes first";
}

TEST(TestGpu, TheTimeLimitHoldsForTheBuildAndForTheBundle) {
  const FakeTree tree("test-gpu-build-time-");
  tree.program("scripts/dependencies", "sleep 600; true");
  tree.program("scripts/configure", "exit 1");
  const auto ends_late = [&](const std::string& script) {
    const auto late = tree.test_gpu({"--time-limit", "5"});
    EXPECT_EQ(late->wait(60s), 1);
    EXPECT_TRUE(late->nothing_left());
    EXPECT_THAT(late->errors(), HasSubstr(script + " has not ended in time (--time-limit)"));
  };
  ends_late("scripts/dependencies");
  tree.program("scripts/configure", "sleep 600; true");
  ends_late("scripts/configure");
  tree.program("scripts/configure", "sleep 2; exit 1");
  tree.add_bundle();
  const auto rest = tree.test_gpu({"--time-limit", "60"});
  EXPECT_EQ(rest->wait(60s), 0) << rest->errors();
  EXPECT_THAT(rest->output(),
              ContainsRegex("the bundle does \\['kill', '--time-limit', '60', '--time-limit', '[1-5][0-9]'\\]"));
}

// As on a machine without a network, where apt-get would wait for its mirrors.
TEST(TestGpu, AsksForPackagesOnlyIfProgramsCannotBeBuilt) {
  const FakeTree tree("test-gpu-offline-");
  tree.program("path/apt-get", "echo \"apt-get $*\"");
  tree.program("scripts/dependencies", "apt-get update");
  tree.program("scripts/configure", "exit 0");
  const std::string some =
      "launcher/lockrun examples/hello_ddp tests/gpu/gpu_test tests/gpu/gpu_rank "
      "tests/gpu/gpu_ranks_test tests/kernels/kernels_against_reference_test "
      "src/cuda/liblockstep_cuda.so";
  const auto shows = [&](const std::string& targets) {
    tree.program("path/ninja", "case \"$*\" in *' -t targets '*) for t in " + targets +
                                   "; do echo \"$t: phony\"; done ;; *) echo ninja builds ;; esac");
    const auto there = tree.test_gpu({});
    EXPECT_EQ(there->wait(60s), 1) << "no program is there";
    EXPECT_THAT(there->output(), HasSubstr("ninja builds\n"));
    return there->output();
  };
  EXPECT_THAT(shows(some + " tests/conformance/conformance_test"), Not(HasSubstr("apt-get")));
  EXPECT_THAT(shows(some), HasSubstr("apt-get update")) << "a program is missing";
  tree.add_bundle();
  EXPECT_THAT(shows(some), Not(HasSubstr("apt-get"))) << "the bundle has what is missing";
}

TEST(TestGpu, ABundleNeverAsksForPackages) {
  const FakeTree bundle("test-gpu-in-bundle-");
  bundle.program("bin/lockrun", "exit 0");
  bundle.program("bin/gpu_ranks_test", "exit 1");
  for (const char* program : {"scripts/dependencies", "scripts/configure", "path/apt-get", "path/ninja"})
    bundle.program(program, "touch \"$0.called\"");
  const auto kill = bundle.test_gpu({});
  EXPECT_EQ(kill->wait(60s), 1) << kill->errors();
  EXPECT_THAT(kill->output(), HasSubstr("=== kill: 0 passed, 1 failed"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(bundle.folder()))
    EXPECT_NE(entry.path().extension(), ".called") << entry.path();
}

// The fake apt-get fails where the real one would wait longest.
TEST(Dependencies, BoundsTheTimeForTheNetwork) {
  const FakeBuild tree("dependencies-");
  std::filesystem::create_directories(tree.folder() / "scripts");
  std::filesystem::copy_file(SCRIPTS "/dependencies", tree.folder() / "scripts/dependencies");
  tree.program("path/id", "echo 0");
  tree.program("path/dpkg", "echo amd64");
  tree.program("path/dpkg-query", "exit 1");
  tree.program("path/timeout", "echo \"timeout $*\"; shift; exec \"$@\"");
  tree.program(
      "path/apt-get",
      R"(case "$*" in *" update "*) exit ${UPDATE_FAILS:-0} ;; *--download-only*) echo no route; exit 100 ;; esac)");
  for (const auto& [code, text] : {std::pair{"124", "apt-get update has not ended after"}, {"0", "no route\n"}}) {
    Child run({"bash", tree.folder() / "scripts/dependencies"},
              {.environment = {{"PATH", (tree.folder() / "path").string() + ":" + std::getenv("PATH")},
                               {"UPDATE_FAILS", code}}});
    EXPECT_NE(run.wait(60s), 0) << run.output();
    EXPECT_THAT(run.output(), ContainsRegex("timeout [0-9]+ apt-get -o Acquire::http::Timeout=10 .*Retries=1 update"));
    EXPECT_THAT(run.errors(), HasSubstr(text));
  }
}

TEST(TestGpu, EndsWithAllThatItStarted) {
  namespace fs = std::filesystem;
  const fs::path build = ::testing::TempDir() + "test-gpu-" + std::to_string(::getpid()),
                 program = build / "tests/gpu/gpu_ranks_test";
  fs::create_directories(program.parent_path());
  std::ofstream(program) << "#!/bin/sh\ntouch \"$0.started\"\nsleep 60\n";
  fs::permissions(program, fs::perms::owner_all);
  Child kill(script("test-gpu", {"kill"}), {.environment = {{"BUILD", build.string()}}});
  const fs::path started = program.string() + ".started";
  for (int tries = 0; tries < 3000 && !fs::exists(started); ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(fs::exists(started)) << kill.errors();
  kill.signal(SIGTERM);
  EXPECT_EQ(kill.wait(30s), 128 + SIGTERM) << kill.errors();
  EXPECT_TRUE(kill.nothing_left());
  fs::remove_all(build);
}

}  // namespace
}  // namespace lockstep::testing
