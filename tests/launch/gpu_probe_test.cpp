// The search for GPUs in a separate process, however that process ends.
#include "src/launch/topology/gpu_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/message_of.h"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SearchApart, BringsBackWhatWasFound) {
  const pid_t here = ::getpid();
  const GpuSearch found = search_apart([here]() -> GpuSearch {
    if (::getpid() == here) throw Error("this is the launcher itself");
    return {{{0, "A", "GPU-1", "0000:17:00.0", 1ull << 40, 9, 0}, {1, "B \"x\"\n", "GPU-2", "", 2, 10, 3}}, ""};
  });
  ASSERT_EQ(found.gpus.size(), 2u);
  EXPECT_EQ(found.gpus[0].memory_bytes, 1ull << 40);
  EXPECT_EQ(found.gpus[0].pci, "0000:17:00.0");
  EXPECT_EQ(found.gpus[1].ordinal, 1);
  EXPECT_EQ(found.gpus[1].name, "B \"x\"\n");
  EXPECT_EQ(found.gpus[1].compute_major * 100 + found.gpus[1].compute_minor, 1003);
}

TEST(SearchApart, BringsBackWhyThereAreNoneAndWhatIsBroken) {
  const GpuSearch none = search_apart([] { return GpuSearch{{}, "no driver"}; });
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_EQ(none.why_none, "no driver");
  EXPECT_EQ(message_of([] { search_apart([]() -> GpuSearch { throw Error("the driver is too old"); }); }),
            "the driver is too old");
}

TEST(SearchApart, ADriverThatCrashesOrHangsIsASentence) {
  EXPECT_THAT(message_of([] {
                search_apart([]() -> GpuSearch {
                  ::raise(SIGKILL);
                  return {};
                });
              }),
              AllOf(HasSubstr("ended by signal 9"), HasSubstr("nvidia-smi")));
  EXPECT_THAT(message_of([] { search_apart([]() -> GpuSearch { ::_exit(3); }); }),
              HasSubstr("exited with code 3 and without an answer"));
  EXPECT_THAT(message_of([] { search_apart([]() -> GpuSearch { ::_exit(0); }); }), HasSubstr("without an answer"));
  EXPECT_THAT(message_of([] {
                search_apart(
                    []() -> GpuSearch {
                      for (;;) ::pause();
                    },
                    std::chrono::milliseconds(100));
              }),
              HasSubstr("did not end within 100 ms"));
}

}  // namespace
}  // namespace lockstep::launch
