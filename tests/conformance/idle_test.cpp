// The CPU time of waiting ranks, and the place of their shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/conformance/forked_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

class Waiting : public ::testing::TestWithParam<std::tuple<Wire, bool>> {};

// The guarantee is 0.1 s in 10; a spinning rank would take the entire two seconds. All threads count: the caller, the
// communication thread, the failure detector.
TEST_P(Waiting, ALatePeerCostsHardlyAnyTimeOfTheCpu) {
  const auto [wire, is_async] = GetParam();
  const auto reports = run_processes({.wire = wire, .ranks = 3}, [is_async = is_async](Rank& rank, RankReport&) {
    std::vector<float> data(100000);
    const auto step = [&] {
      if (!is_async) return rank.all_reduce(data.data(), data.size());
      rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum)).wait();
    };
    step();
    const double start = cpu_seconds();
    step();
    const double before = cpu_seconds(), punctual = before - start;
    const auto begin = std::chrono::steady_clock::now();
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
    step();
    const double used = cpu_seconds() - before;
    if (std::chrono::steady_clock::now() - begin < milliseconds(1500)) throw Error("rank {} did not wait", rank.rank());
    if (used > 2 * punctual + 0.1)
      throw Error("rank {} used {:.3f} s of CPU in two seconds of waiting", rank.rank(), used);
  });
  for (const RankReport& report : reports) EXPECT_EQ(report.kind(), "") << report.text();
}

INSTANTIATE_TEST_SUITE_P(
    Ring, Waiting, ::testing::Combine(::testing::Values(Wire::kMemfd, Wire::kTcp, Wire::kNodes), ::testing::Bool()),
    [](const auto& tested) {
      return std::string(name_of(std::get<0>(tested.param))) + (std::get<1>(tested.param) ? "_async" : "_sync");
    });

// Lists all files that this process has open or mapped.
std::string open_files() {
  std::ifstream maps("/proc/self/maps");
  std::string names((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the folder's own descriptor is among them
    names += std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
  }
  return names;
}

// Memory without a name is freed with the last process that has it, however that ends; and /dev/shm, which is small in
// containers, is not used.
TEST(SharedMemory, HasNoNameThatCouldStayBehind) {
  const auto reports = run_processes({.wire = Wire::kMemfd, .ranks = 3}, [](Rank& rank, RankReport& report) {
    const Buffer registered = rank.backend().allocate(8 << 20);
    std::vector<float> plain(1 << 20);
    rank.all_reduce(registered.data(), registered.bytes() / 4);
    rank.all_reduce(plain.data(), plain.size());
    const std::string names = open_files();
    const bool is_memfd = names.find("/memfd:lockstep (deleted)") != std::string::npos;
    const bool is_named = names.find("/dev/shm") != std::string::npos || names.find("SYSV") != std::string::npos;
    note(report, {is_memfd && !is_named ? "unnamed" : "named", is_memfd && !is_named ? "" : names});
    rank.barrier();
    raise(SIGKILL);
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.signal, SIGKILL);
    EXPECT_EQ(report.kind(), "unnamed") << report.text();
  }
}

std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Also if a rank is alone, or alone on its node. The ranks are threads, so their mappings are counted together.
TEST(RegisteredMemory, GoesWithItsLastHandle) {
  constexpr std::size_t kBytes = std::size_t{8} << 20, kTimes = 40;
  for (const GroupSpec& spec :
       {GroupSpec{.wire = Wire::kMemfd, .ranks = 1}, GroupSpec{.wire = Wire::kMemfd, .ranks = 2},
        GroupSpec{.wire = Wire::kTcp, .ranks = 2}, GroupSpec{.wire = Wire::kNodes, .ranks = 3}}) {
    run_threads(spec, [&](Rank& rank) {
      rank.backend().allocate(kBytes);
      rank.barrier();
      const std::size_t before = mapped_bytes();
      rank.barrier();
      for (std::size_t i = 0; i < kTimes; ++i) rank.backend().allocate(kBytes);
      rank.barrier();
      EXPECT_LT(mapped_bytes(), before + kTimes / 2 * kBytes) << name_of(spec.wire) << ", " << spec.ranks << " ranks";
      rank.barrier();
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
