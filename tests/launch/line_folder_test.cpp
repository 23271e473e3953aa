#include "src/launch/output/line_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Texts = std::vector<std::string>;

// "[0-1] text", with '!' in front of an error.
Texts texts(const std::vector<LineFolder::Line>& lines) {
  Texts all;
  for (const auto& line : lines) all.push_back((line.is_error ? "![" : "[") + ranges_of(line.ranks) + "] " + line.text);
  return all;
}

const Clock::time_point kFoldStart{};

TEST(LineFolder, ListsAreShort) {
  EXPECT_EQ(ranges_of({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(ranges_of({0, 2}), "0,2");
  EXPECT_EQ(ranges_of({0, 1, 4, 6, 7, 8}), "0-1,4,6-8");
  EXPECT_EQ(ranges_of({7}), "7");
}

TEST(LineFolder, ALineOfAllComesAtOnceAndOneOfSomeAfterAMoment) {
  LineFolder folder(3);
  folder.add(0, false, "same\n", kFoldStart);
  folder.add(2, false, "same\n", kFoldStart);
  EXPECT_THAT(folder.take(kFoldStart + milliseconds(99)), IsEmpty());
  EXPECT_EQ(folder.due(), kFoldStart + milliseconds(100));
  folder.add(1, false, "same\n", kFoldStart + milliseconds(99));
  EXPECT_THAT(texts(folder.take(kFoldStart + milliseconds(99))), ElementsAre("[0-2] same\n"));
  folder.add(0, false, "again\n", kFoldStart);
  folder.add(2, false, "again\n", kFoldStart);
  EXPECT_THAT(texts(folder.take(kFoldStart + milliseconds(100))), ElementsAre("[0,2] again\n"));
  EXPECT_FALSE(folder.due());
}

TEST(LineFolder, TheOrderOfEachRankStays) {
  LineFolder folder(2);
  for (const char* text : {"a\n", "b\n", "a\n"}) folder.add(0, false, text, kFoldStart);
  for (const char* text : {"b\n", "a\n", "c\n", "a\n"}) folder.add(1, false, text, kFoldStart);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("[0] a\n", "[0-1] b\n", "[0-1] a\n", "[1] c\n", "[1] a\n"));
}

TEST(LineFolder, ARanksOwnRepetitionStays) {
  LineFolder folder(2);
  for (int i = 0; i < 2; ++i)
    for (const int rank : {0, 0, 1}) folder.add(rank, false, "x\n", kFoldStart);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("[0-1] x\n", "[0-1] x\n", "[0] x\n", "[0] x\n"));
}

TEST(LineFolder, OutputAndErrorsDoNotFold) {
  LineFolder folder(2);
  folder.add(0, false, "x\n", kFoldStart);
  folder.add(1, true, "x\n", kFoldStart);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("[0] x\n", "![1] x\n"));
}

TEST(LineFolder, LinesThatDifferInTheWritersNumberFold) {
  LineFolder folder(12);
  for (const int rank : {0, 1, 11})
    folder.add(rank, true, "error (rank " + std::to_string(rank) + "): Rank=" + std::to_string(rank) + " left\n",
               kFoldStart);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("![0-1,11] error (rank [0-1,11]): Rank=[0-1,11] left\n"));
}

TEST(LineFolder, LinesAboutOtherRanksFoldOnlyWhenTheyAreTheSame) {
  LineFolder folder(4);
  for (const int rank : {1, 0, 2}) folder.add(rank, true, "rank 1 was lost\n", kFoldStart);
  folder.add(3, true, "rank 3 was lost\n",
             kFoldStart);  // its own number: a different text from that of the three ranks
  folder.add(2, true, "rank 12 was lost\n", kFoldStart);  // and 2 is not part of 12
  folder.add(2, true, "tank 2\n", kFoldStart);
  folder.add(1, true, "tank 1\n", kFoldStart);
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("![0-2] rank 1 was lost\n", "![3] rank 3 was lost\n",
                                                    "![2] rank 12 was lost\n", "![2] tank 2\n", "![1] tank 1\n"));
}

TEST(LineFolder, LastWordsWaitLonger) {
  LineFolder folder(2);
  folder.expect_last_words();
  folder.add(0, true, "x\n", kFoldStart);
  EXPECT_THAT(folder.take(kFoldStart + milliseconds(999)), IsEmpty());
  EXPECT_THAT(texts(folder.take(kFoldStart + milliseconds(1000))), ElementsAre("![0] x\n"));
}

TEST(LineFolder, AStatusComesBelowItsRanksLines) {
  LineFolder folder(2);
  folder.add(0, false, "a\n", kFoldStart);
  folder.add(1, false, "b\n", kFoldStart);
  folder.add(0, false, "c\n", kFoldStart);
  folder.add(1, false, "d\n", kFoldStart);
  EXPECT_THAT(texts(folder.take_until(0)), ElementsAre("[0] a\n", "[1] b\n", "[0] c\n"));
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("[1] d\n"));
}

TEST(LineFolder, AFloodIsNotKept) {
  constexpr std::size_t kLines = 3 * LineFolder::kMostLines;
  LineFolder folder(2);
  std::size_t gone = 0;
  for (std::size_t i = 0; i < kLines; ++i) {
    for (const auto& line : folder.add(0, false, std::to_string(i) + "\n", kFoldStart))
      EXPECT_EQ(line.text, std::to_string(gone++) + "\n");
    ASSERT_LE(i + 1 - gone, LineFolder::kMostLines);
  }
  EXPECT_EQ(folder.take_all().size(), LineFolder::kMostLines);
  LineFolder of_long_lines(2);
  gone = 0;
  for (int i = 0; i < 3; ++i)
    gone += of_long_lines.add(0, false, std::string(1 << 20, static_cast<char>('a' + i)), kFoldStart).size();
  EXPECT_EQ(gone, 2u);
}

// The work for a line must not grow with the number of waiting lines.
TEST(LineFolder, EachRankComparesAWaitingLineOnceAtMost) {
  constexpr int kRanks = 4;
  constexpr std::size_t kLines = LineFolder::kMostLines / kRanks;
  for (const bool equal : {true, false}) {
    LineFolder folder(kRanks + 1);  // one of them writes nothing, so that all lines wait
    for (int rank = 0; rank < kRanks; ++rank)
      for (std::size_t i = 0; i < kLines; ++i)
        folder.add(rank, false, equal ? "y\n" : fmt::format("{} {}\n", rank, i), kFoldStart);
    EXPECT_EQ(folder.take_all().size(), equal ? kLines : kRanks * kLines);
    EXPECT_LE(folder.comparisons(), kRanks * kRanks * kLines) << equal;
  }
}

TEST(LineFolder, ARanksLastLineIsKnownAfterItHasGone) {
  LineFolder folder(3);
  for (const char* text : {"a\n", "b\n"}) folder.add(0, false, text, kFoldStart);
  for (const int rank : {1, 2}) folder.add(rank, false, "a\n", kFoldStart);
  EXPECT_THAT(texts(folder.take(kFoldStart)), ElementsAre("[0-2] a\n"));
  EXPECT_THAT(folder.take_until(1), IsEmpty()) << "its only line has gone";
  for (const char* text : {"a\n", "b\n"}) folder.add(1, false, text, kFoldStart);
  folder.add(2, false, "b\n", kFoldStart);
  EXPECT_THAT(texts(folder.take_until(2)), ElementsAre("[0,2] b\n"));
  EXPECT_THAT(texts(folder.take_all()), ElementsAre("[1] a\n", "[1] b\n"));
}

}  // namespace
}  // namespace lockstep::launch
