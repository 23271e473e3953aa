#include "src/launch/output/line_cutter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Pieces = std::vector<Piece>;
using namespace std::string_literals;

Piece line(std::string text) { return {Piece::Kind::kLine, std::move(text)}; }
Piece status(std::string text) { return {Piece::Kind::kStatus, std::move(text)}; }
Piece status_end(std::string text) { return {Piece::Kind::kStatusEnd, std::move(text)}; }

// Joins all output to one text: the pieces must not depend on where the reads happened to end.
std::string joined(LineCutter& cutter, std::string_view bytes, std::size_t step) {
  std::string text;
  const auto add = [&](const Pieces& pieces) {
    for (const Piece& piece : pieces) text += piece.text;
  };
  for (std::size_t at = 0; at < bytes.size(); at += step) add(cutter.feed(bytes.substr(at, step)));
  add(cutter.finish());
  return text;
}

TEST(LineCutter, WholeLinesAndALastOneWithoutNewline) {
  LineCutter cutter({});
  EXPECT_EQ(cutter.feed("one\ntw"), Pieces{line("one\n")});
  EXPECT_EQ(cutter.feed("o\n\nthr"), (Pieces{line("two\n"), line("\n")}));
  EXPECT_EQ(cutter.feed(""), Pieces{});
  EXPECT_EQ(cutter.finish(), Pieces{line("thr\n")});
  EXPECT_EQ(cutter.finish(), Pieces{});
}

TEST(LineCutter, CarriageReturnsAreBytesInALog) {
  LineCutter cutter({});
  EXPECT_EQ(cutter.feed("a\rb\r\nc\r"), Pieces{line("a\rb\r\n")});
  EXPECT_EQ(cutter.finish(), Pieces{line("c\r\n")});
}

TEST(LineCutter, BinaryBytesPassWhereverTheReadsEnd) {
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i * 7);
  bytes += "\0\0end"s;
  for (const std::size_t step : {1, 2, 3, 100, 5000}) {
    LineCutter unchanged({true});
    EXPECT_EQ(joined(unchanged, bytes, step), bytes);
  }
}

TEST(LineCutter, AnEndlessLineIsCutAndUnchangedWithoutPrefix) {
  LineCutter cutter({false, false, 4});
  EXPECT_EQ(cutter.feed("abcdefgh!\n"), (Pieces{line("abcd\n"), line("(continued) efgh\n"), line("(continued) !\n")}));
  const std::string bytes(1000, 'x');
  for (const std::size_t step : {1, 7, 1000}) {
    LineCutter unchanged({true, false, 16});
    EXPECT_EQ(joined(unchanged, bytes, step), bytes);
  }
}

TEST(LineCutter, NoCharacterIsCut) {
  const std::string three = "\u6f22", two = "\u00e9", four = "\U0001f600";
  for (const std::string& character : {two, three, four}) {
    LineCutter cutter({false, false, 5});
    const std::string a(5 - character.size() + 1, 'a');
    EXPECT_EQ(cutter.feed(a + character + "b\n"), (Pieces{line(a + "\n"), line("(continued) " + character + "b\n")}))
        << character;
    LineCutter fits({false, false, 5});
    EXPECT_EQ(fits.feed(a.substr(1) + character + "b\n"),
              (Pieces{line(a.substr(1) + character + "\n"), line("(continued) b\n")}));
  }
  LineCutter binary({false, false, 4});
  EXPECT_EQ(binary.feed("\x80\x80\x80\x80\x80\n"), (Pieces{line("\x80\x80\x80\x80\n"), line("(continued) \x80\n")}));
}

TEST(LineCutter, ALineOfMegabytesStaysWhole) {
  const std::string text(4 << 20, 'x');
  LineCutter cutter({});
  EXPECT_EQ(joined(cutter, text + "\n", 65536), text + "\n");
}

TEST(LineCutter, AStatusIsRedrawnWithoutPrefixUntilItsNewline) {
  LineCutter cutter({false, true});
  EXPECT_EQ(cutter.feed("start\n\rstep 1"), (Pieces{line("start\n"), status("step 1")}));
  EXPECT_EQ(cutter.feed("\rstep 2"), Pieces{status("step 2")});
  EXPECT_EQ(cutter.feed("\rstep 3 of"), Pieces{status("step 3 of")});
  EXPECT_EQ(cutter.feed(" 9"), Pieces{status("step 3 of 9")});
  EXPECT_EQ(cutter.feed("\ndone\n"), (Pieces{status_end("step 3 of 9"), line("done\n")}));
}

TEST(LineCutter, ACarriageReturnBehindTheTextWorksAsWell) {
  LineCutter cutter({false, true});
  EXPECT_EQ(cutter.feed("step 1\r"), Pieces{status("step 1")});
  EXPECT_EQ(cutter.feed("step 2\r"), Pieces{status("step 2")});
  EXPECT_EQ(cutter.feed("\n"), Pieces{status_end("step 2")});
  EXPECT_EQ(cutter.feed("x\r"), Pieces{status("x")});
  EXPECT_EQ(cutter.finish(), Pieces{status_end("x")});
}

TEST(LineCutter, ALineOfAnotherSystemIsNoStatus) {
  LineCutter cutter({false, true});
  EXPECT_EQ(cutter.feed("text\r\nmore"), Pieces{line("text\n")});
}

TEST(LineCutter, AStatusWithoutEndIsBounded) {
  LineCutter cutter({false, true, 8});
  cutter.feed("\r");
  for (int i = 0; i < 1000; ++i)
    for (const Piece& piece : cutter.feed("xyz")) EXPECT_LE(piece.text.size(), 8u);
}

TEST(LastLines, KeepsTheLastOnesShort) {
  LastLines last(2, 5);
  last.feed("one\ntwo\nth");
  last.feed("ree and more\nrest");
  EXPECT_THAT(last.lines(), ::testing::ElementsAre("two", "three", "rest"));
  EXPECT_THAT(LastLines().lines(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace lockstep::launch
