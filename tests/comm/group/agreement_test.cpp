// Three ranks, of which rank 1 (and sometimes rank 2) fails: the error of each rank, and whether the group is usable
// afterwards.
#include "lockstep/comm/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>
#include <string>

#include "src/core/base/error_of_peer.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

struct Thrown {
  std::string text;
  bool is_invalid_argument = false, is_file_error = false, is_of_peer = false;
};

template <typename Call> Thrown thrown_by(const Call& call) {
  try {
    call();
    return {};
  } catch (const InvalidArgument& error) {
    return {error.what(), true};
  } catch (const FileError& error) {
    return {error.what(), false, true, dynamic_cast<const FileErrorOfPeer*>(&error) != nullptr};
  } catch (const std::exception& error) {
    return {error.what(), false, false, dynamic_cast<const ErrorOfPeer*>(&error) != nullptr};
  }
}

// Returns what `call`, given the group, throws on each rank. The group must be usable afterwards.
template <typename Call> std::array<Thrown, kRanks> thrown_on_all_ranks(const Call& call) {
  std::array<Thrown, kRanks> thrown;
  run_ranks(kRanks, "shm", [&](ProcessGroup& group) {
    thrown[static_cast<std::size_t>(group.rank())] = thrown_by([&] { call(group); });
    EXPECT_NO_THROW(group.barrier());
  });
  return thrown;
}

TEST(Agreement, ARefusalIsThrownOnAllRanksWithTheFirstObjectionsRank) {
  const auto thrown = thrown_on_all_ranks([](ProcessGroup& group) {
    refuse_on_all_ranks(group, "open", group.rank() == 0 ? "" : fmt::format("no {}", group.rank()));
  });
  for (const Thrown& each : thrown) {
    EXPECT_EQ(each.text, "open: rank 1: no 1");
    EXPECT_TRUE(each.is_invalid_argument);
  }
}

TEST(Agreement, WithoutARefusalNothingIsThrown) {
  for (const Thrown& each : thrown_on_all_ranks([](ProcessGroup& group) { refuse_on_all_ranks(group, "open", ""); }))
    EXPECT_EQ(each.text, "");
}

TEST(Agreement, DifferentLinesAreNamedOnAllRanks) {
  const auto thrown = thrown_on_all_ranks([](ProcessGroup& group) {
    check_same_on_all_ranks(group, "wrap", {"optimizer SGD", group.rank() == 2 ? "lr 2" : "lr 1"},
                            "have different ones");
  });
  for (const Thrown& each : thrown)
    EXPECT_EQ(each.text, "wrap: the ranks have different ones: rank 2 has lr 2 at position 1, rank 0 has lr 1");
}

TEST(Agreement, AMissingLineIsADifference) {
  const auto thrown = thrown_on_all_ranks([](ProcessGroup& group) {
    std::vector<std::string> lines = {"a"};
    if (group.rank() == 1) lines.clear();
    check_same_on_all_ranks(group, "wrap", lines, "differ");
  });
  for (const Thrown& each : thrown)
    EXPECT_EQ(each.text, "wrap: the ranks differ: rank 1 has nothing at position 0, rank 0 has a");
}

TEST(Agreement, EachRankGetsItsOwnResult) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    EXPECT_EQ(on_all_ranks(group, [&] { return group.rank() * 10; }), group.rank() * 10);
  });
}

TEST(Agreement, AFailedRankKeepsItsExceptionAndTheOthersGetItsKind) {
  const auto arguments = thrown_on_all_ranks([](ProcessGroup& group) {
    on_all_ranks(group, [&] {
      if (group.rank() == 1) throw InvalidArgument("lr is -1");
    });
  });
  EXPECT_EQ(arguments[1].text, "lr is -1");
  EXPECT_EQ(arguments[0].text, "rank 1: lr is -1");
  EXPECT_EQ(arguments[2].text, "rank 1: lr is -1");
  for (const Thrown& each : arguments) EXPECT_TRUE(each.is_invalid_argument);

  const auto files = thrown_on_all_ranks([](ProcessGroup& group) {
    on_all_ranks(group, [&] {
      if (group.rank() == 1) throw FileError("x.bin is damaged");
    });
  });
  EXPECT_EQ(files[2].text, "rank 1: x.bin is damaged");
  for (const Thrown& each : files) EXPECT_TRUE(each.is_file_error);
  EXPECT_TRUE(files[0].is_of_peer);
  EXPECT_FALSE(files[1].is_of_peer);

  const auto memory = thrown_on_all_ranks([](ProcessGroup& group) {
    on_all_ranks(group, [&] {
      if (group.rank() == 1) throw std::bad_alloc();
    });
  });
  EXPECT_THAT(memory[0].text, HasSubstr("rank 1: "));
  EXPECT_TRUE(memory[0].is_of_peer);
  EXPECT_FALSE(memory[1].is_of_peer);
}

TEST(Agreement, OfTwoFailedRanksEachKeepsItsOwnExceptionAndTheOthersNameTheFirst) {
  const auto thrown = thrown_on_all_ranks([](ProcessGroup& group) {
    on_all_ranks(group, [&] {
      if (group.rank() > 0) throw InvalidArgument("fault {}", group.rank());
    });
  });
  EXPECT_EQ(thrown[0].text, "rank 1: fault 1");
  EXPECT_EQ(thrown[1].text, "fault 1");
  EXPECT_EQ(thrown[2].text, "fault 2");
}

TEST(Agreement, TextsOfAnyBytesAreGathered) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    const std::string zero(1, '\0');
    EXPECT_THAT(gather_on_all_ranks(group,
                                    [&]() -> std::string {
                                      if (group.rank() == 0) return "";
                                      return group.rank() == 1 ? zero + "\n" : "f";
                                    }),
                ElementsAre("", zero + "\n", "f"));
  });
}

TEST(Agreement, DifferentCallsDoNotPair) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    EXPECT_THROW(
        {
          if (group.rank() == 1)
            refuse_on_all_ranks(group, "open", "");
          else
            on_all_ranks(group, [] {});
        },
        MismatchError);
  });
}

TEST(Agreement, AnErrorBetweenCallsEndsTheGroupWithItsText) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    const std::string text = thrown_by([&] {
                               abort_on_error(group, [&] {
                                 if (group.rank() == 1) throw std::runtime_error("label 9");
                                 group.barrier();
                               });
                             }).text;
    if (group.rank() == 1)
      EXPECT_EQ(text, "label 9");
    else
      EXPECT_THAT(text, HasSubstr("rank 1 aborted the group: label 9"));
  });
}

TEST(Agreement, AbortAndThrowNamesTheReasonOnAllRanks) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    if (group.rank() == 2)
      EXPECT_EQ(message_of([&] { abort_and_throw(group, "no more data"); }), "no more data");
    else
      EXPECT_THAT(message_of([&] { group.barrier(); }), HasSubstr("rank 2 aborted the group: no more data"));
  });
}

// An error that ended the group is the failed rank's own, also where the agreement itself cannot be reached any more.
TEST(Agreement, TheOwnErrorIsThrownAlsoWhenTheGroupIsOver) {
  run_ranks(kRanks, "shm", [](ProcessGroup& group) {
    const std::string text = message_of([&] {
      on_all_ranks(group, [&] {
        if (group.rank() == 1) abort_and_throw(group, "gone");
      });
    });
    if (group.rank() == 1)
      EXPECT_EQ(text, "gone");
    else
      EXPECT_THAT(text, HasSubstr("rank 1 aborted the group: gone"));
  });
}

TEST(Agreement, AJobOfOneProcessNeedsNoGroup) {
  EXPECT_EQ(on_all_ranks(nullptr, [] { return 7; }), 7);
  EXPECT_EQ(message_of([] { refuse_on_all_ranks(nullptr, "open", "too small"); }), "open: too small");
  EXPECT_EQ(message_of([] { on_all_ranks(nullptr, [] { throw InvalidArgument("bad"); }); }), "bad");
  EXPECT_EQ(message_of([] { abort_and_throw(nullptr, "why"); }), "why");
  EXPECT_NO_THROW(check_same_on_all_ranks(nullptr, "wrap", {"a"}, "differ"));
}

}  // namespace
}  // namespace lockstep
