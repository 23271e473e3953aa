// Starting ranks: environment, cores, token, programs that cannot be run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "src/launch/topology/cores.h"
#include "tests/faults/lockrun.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> values(const std::string& output, const std::string& pattern) {
  std::vector<std::string> found;
  for (const auto& match : find_matches(output, pattern)) found.push_back(match[1]);
  return found;
}

TEST(LockrunStart, EveryRankKnowsItsPlace) {
  Child job(lockrun(
      3, {"env:RANK+env:LOCAL_RANK+env:WORLD_SIZE+env:LOCAL_WORLD_SIZE+env:MASTER_ADDR+env:LOCKSTEP_STORE_HOSTED"}));
  EXPECT_EQ(job.wait(), 0);
  for (const std::string rank : {"0", "1", "2"}) {
    const std::string prefix = "[" + rank + "] ";
    EXPECT_EQ(lines_of(rank, job.output()), (prefix + "RANK=" + rank + "\n" + prefix + "LOCAL_RANK=" + rank + "\n" +
                                             prefix + "WORLD_SIZE=3\n" + prefix + "LOCAL_WORLD_SIZE=3\n" + prefix +
                                             "MASTER_ADDR=127.0.0.1\n" + prefix + "LOCKSTEP_STORE_HOSTED=1\n"));
  }
}

// torch.distributed's rank 0 listens on it, in the same job.
TEST(LockrunStart, MasterPortIsLeftToTheProgram) {
  const std::string script =
      "import os, socket, time\n"
      "address = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
      "if os.environ['RANK'] == '0':\n"
      "    print(socket.create_server(('', address[1])).accept()[0].recv(5).decode())\n"
      "for again in range(600 if os.environ['RANK'] == '1' else 0):\n"
      "    try:\n"
      "        socket.create_connection(address).sendall(b'hello')\n"
      "        break\n"
      "    except OSError:\n"
      "        time.sleep(0.05)\n";
  Child job({LOCKRUN, "-n", "2", "python3", "-c", script});
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.errors();
  EXPECT_EQ(job.output(), "[0] hello\n");
}

TEST(LockrunStart, ATokenIsMadeForTheJobAndIsNoArgument) {
  std::set<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    Child job(lockrun(2, {"env:LOCKSTEP_TOKEN+env:MASTER_PORT"}));
    EXPECT_EQ(job.wait(), 0);
    const auto tokens = values(job.output(), "LOCKSTEP_TOKEN=([0-9a-f]{64})\n"),
               ports = values(job.output(), "MASTER_PORT=(\\d+)\n");
    ASSERT_EQ(tokens.size(), 2u) << job.output();
    EXPECT_EQ(tokens[0], tokens[1]);
    ASSERT_EQ(ports.size(), 2u);
    EXPECT_EQ(ports[0], ports[1]);
    seen.insert(tokens[0]);
  }
  EXPECT_EQ(seen.size(), 2u) << "the same token twice";
}

TEST(LockrunStart, TheUsersTokenAndThreadsStay) {
  ChildOptions options;
  options.environment = {{"LOCKSTEP_TOKEN", "mine"}, {"OMP_NUM_THREADS", "5"}};
  Child job(lockrun(2, {"env:LOCKSTEP_TOKEN+env:OMP_NUM_THREADS"}), options);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of("1", job.output()), "[1] LOCKSTEP_TOKEN=mine\n[1] OMP_NUM_THREADS=5\n");
}

TEST(LockrunStart, AMisspeltVariableIsToldOnce) {
  ChildOptions options;
  options.environment = {{"LOCKSTEP_TIMEOUT", "5"}};
  Child job(lockrun(2, {"exit:0"}), options);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: environment: LOCKSTEP_TIMEOUT is set, but Lockstep has no such "
                                      "variable: did you mean LOCKSTEP_TIMEOUT_S?\n"));
}

TEST(LockrunStart, ATokenFileThatCannotBeReadIsNamed) {
  ChildOptions options;
  options.environment = {{"LOCKSTEP_TOKEN_FILE", "/nonexistent/token"}};
  Child job(lockrun(2, {"out:ran"}), options);
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), HasSubstr("/nonexistent/token"));
  EXPECT_EQ(job.output(), "");
}

TEST(LockrunStart, DisjointCoresAndTheirShareOfThreads) {
  const std::size_t cores = launch::inherited_cores().size();
  if (cores < 2) GTEST_SKIP() << "one core: nothing to share";
  Child job(lockrun(2, {"cores+env:OMP_NUM_THREADS"}));
  EXPECT_EQ(job.wait(), 0);
  const auto seen = values(job.output(), "core (\\d+)\n");
  EXPECT_EQ(seen.size(), cores);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), cores) << job.output();
  EXPECT_THAT(job.output(), HasSubstr("[0] OMP_NUM_THREADS=" + std::to_string(cores / 2) + "\n"));
  Child unbound(lockrun(2, {"cores"}, {"--no-bind"}));
  EXPECT_EQ(unbound.wait(), 0);
  EXPECT_EQ(values(unbound.output(), "core (\\d+)\n").size(), 2 * cores);
}

TEST(LockrunStart, MoreRanksThanCoresShareThemAll) {
  const std::size_t cores = launch::inherited_cores().size();
  const auto ranks = static_cast<int>(cores) + 1;
  if (ranks > 64) GTEST_SKIP() << cores << " cores would need as many processes";
  Child job(lockrun(ranks, {"cores+env:OMP_NUM_THREADS"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(values(job.output(), "core (\\d+)\n").size(), cores * static_cast<std::size_t>(ranks));
  EXPECT_THAT(job.output(), HasSubstr("[0] OMP_NUM_THREADS=1\n"));
}

TEST(LockrunStart, ProgramsThatCannotBeRunAreNamed) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("lockstep-start-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const std::string script = folder / "script";
  std::ofstream(script) << "#!/nonexistent/interpreter\n";
  const auto run = [](const std::string& program) {
    Child job({LOCKRUN, "-n", "2", program});
    const int code = job.wait();
    EXPECT_THAT(job.errors(), HasSubstr("'" + program + "'"));
    EXPECT_TRUE(job.nothing_left());
    return std::to_string(code) + " " + job.errors();
  };
  EXPECT_THAT(run("no-such-program-anywhere"), ::testing::AllOf(::testing::StartsWith("127 "), HasSubstr("PATH")));
  EXPECT_THAT(run("./no/such/program"), ::testing::AllOf(::testing::StartsWith("127 "), HasSubstr("no such file")));
  EXPECT_THAT(run(script), ::testing::StartsWith("126 "));
  EXPECT_THAT(run(folder.string()), ::testing::StartsWith("126 "));
  fs::permissions(script, fs::perms::owner_all);
  EXPECT_THAT(run(script), ::testing::AllOf(::testing::StartsWith("127 "), HasSubstr("interpreter")));
  fs::remove_all(folder);
}

TEST(LockrunStart, WrongFlagsSayHowItGoes) {
  Child job({LOCKRUN, "-n", "none", "x"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), ::testing::AllOf(HasSubstr("-n none"), HasSubstr("usage: lockrun"), HasSubstr("--help")));
  Child help({LOCKRUN, "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("lockrun -n N"));
}

// dist.init_process_group("gloo")
TEST(LockrunStart, GlooMeansHostAndIsLoggedOnce) {
  Child job({LOCKRUN, "-n", "2", "--no-fold", COLLECTIVE_RANK, "steps=3"},
            {.environment = {{"LOCKSTEP_BACKEND", "gloo"}}});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  const std::string line = "backend 'gloo' means Lockstep's 'host'", all = job.output() + job.errors();
  const std::size_t at = all.find(line);
  ASSERT_NE(at, std::string::npos) << all;
  EXPECT_EQ(all.find(line, at + 1), std::string::npos) << all;
}

TEST(SpawnStart, RunsInPlaceWhenItIsARankAlready) {
  ChildOptions options;
  options.environment = {{"RANK", "1"}, {"WORLD_SIZE", "3"}};
  Child job(spawning(7, {"out:zero", "env:WORLD_SIZE+out:one"}), options);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "WORLD_SIZE=3\none\n");
}

TEST(SpawnStart, RanksHaveTheirShareOfThreadsFromTheBeginning) {
  const std::size_t cores = launch::inherited_cores().size();
  Child job(spawning(2, {"begin:OMP_NUM_THREADS"}), {.unset = {"OMP_NUM_THREADS"}});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  const std::string line = "at first OMP_NUM_THREADS=" + std::to_string(std::max<std::size_t>(1, cores / 2)) + "\n";
  EXPECT_EQ(job.output(), line + line);
}

TEST(SpawnStart, RanksAreTheProgramItself) {
  Child job(spawning(2, {"part:zero", "sleep:500+env:RANK"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "zeroRANK=1\n");
}

}  // namespace
}  // namespace lockstep::testing
