// SVG plots: positions and labels of the marks, well-formed output, and points without a logarithm.
#include "src/train/files/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bench/lib/plot_axis.h"
#include "lockstep/core/error.h"
#include "src/train/files/xml_text.h"
#include "tests/support/message_of.h"

namespace lockstep::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kKi = 1024, kMi = kKi * kKi;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

train::Plot plot_of(const std::vector<train::PlotPoint>& points, const std::string& name = "curve") {
  train::Plot plot("title", bytes_axis("size"), microseconds_axis("time"));
  plot.add_curve(name, points);
  return plot;
}

TEST(LogMarks, StandAtPowersOfTwoAndSkipInHumanSteps) {
  EXPECT_THAT(train::log_marks(4, 64, 2, 12), ElementsAre(4, 8, 16, 32, 64));
  EXPECT_THAT(train::log_marks(4, 256 * kMi, 2, 12), ElementsAre(16, 256, 4 * kKi, 64 * kKi, kMi, 16 * kMi, 256 * kMi));
  EXPECT_THAT(train::log_marks(2, 4096, 2, 12), ElementsAre(2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096));
}

TEST(LogMarks, DivideDecadesAsFarAsItTakes) {
  EXPECT_THAT(train::log_marks(1, 1e4, 10, 12), ElementsAre(1, 10, 100, 1e3, 1e4));
  EXPECT_THAT(train::log_marks(1, 20, 10, 12), ElementsAre(1, 2, 5, 10, 20));
  EXPECT_THAT(train::log_marks(50, 100, 10, 12), ElementsAre(50, 60, 70, 80, 90, 100));
  EXPECT_LE(train::log_marks(1e-90, 1e90, 10, 12).size(), 12u);
}

TEST(RangeAround, ShowsTwoMarksEvenAroundOneValue) {
  for (const double value : {1.0, 2.0, 3.7, 99.9, 1e-6, 4096.0, 1e9})
    for (const double base : {2.0, 10.0}) {
      const train::PlotRange range = train::log_range_around({value, value}, base);
      EXPECT_LE(range.low, value);
      EXPECT_GE(range.high, value);
      EXPECT_GE(train::log_marks(range.low, range.high, base, 12).size(), 2u) << value << " base " << base;
    }
  EXPECT_EQ(train::log_range_around({120, 430}, 10).low, 100);
  EXPECT_EQ(train::log_range_around({120, 430}, 10).high, 500);
  EXPECT_EQ(train::log_range_around({4, 4096}, 2).high, 4096) << "a mark at the end needs no room after it";
}

TEST(AxisText, HasReadableUnits) {
  const auto bytes = bytes_axis("").text, time = microseconds_axis("").text, count = count_axis("", 2).text;
  EXPECT_EQ(bytes(4), "4 B");
  EXPECT_EQ(bytes(1024), "1 KiB");
  EXPECT_EQ(bytes(64 * kMi), "64 MiB");
  EXPECT_EQ(time(0.2), "200 ns");
  EXPECT_EQ(time(1), "1 us");
  EXPECT_EQ(time(std::pow(10, 3)), "1 ms");
  EXPECT_EQ(time(2e7), "20 s");
  EXPECT_EQ(count(4096), "4,096");
  EXPECT_EQ(count(1048576), "1,048,576");
  EXPECT_EQ(count(0.5), "0.5");
}

TEST(XmlText, EscapesEverythingThatWouldBreakTheFile) {
  EXPECT_EQ(train::xml_text("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;");
  EXPECT_EQ(train::xml_text("Träff µs"), "Träff µs");
  EXPECT_EQ(train::xml_text("wake_word\a"), "wake_word?");
  EXPECT_EQ(train::xml_text("\xff\xc3"), "??") << "not UTF-8";
  EXPECT_EQ(train::xml_text("\xed\xa0\x80"), "???") << "half a surrogate pair";
}

TEST(Plot, DrawsEveryCurveOnceAndNamesIt) {
  train::Plot plot("time <by> size", bytes_axis("message size (bytes)"), microseconds_axis("time"));
  plot.add_curve("ring & shm", {{4, 1}, {1024, 2}, {kMi, 300}});
  plot.add_curve("mpi", {{4, 2}, {1024, 3}});
  const std::string svg = plot.svg();
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("time &lt;by&gt; size"), HasSubstr("ring &amp; shm"), HasSubstr(">message size (bytes)<"),
                    HasSubstr(">1 MiB<"), HasSubstr(">100 us<"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(Plot, BreaksTheLineWhereAPointHasNoLogarithmAndSaysSo) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::string svg = plot_of({{4, 1}, {8, 0}, {16, 2}, {32, nan}, {64, inf}, {-1, 3}}).svg();
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_THAT(svg, AllOf(HasSubstr("curve: 4 of 6 points not drawn"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(Plot, DrawsASinglePoint) {
  const std::string svg = plot_of({{1000, 7}}).svg();
  EXPECT_EQ(count(svg, "<polyline"), 1);
  EXPECT_THAT(svg, AllOf(HasSubstr("512 B"), HasSubstr("1 KiB"), Not(HasSubstr("nan"))));
}

TEST(Plot, WithoutPointsItSaysThatThereIsNothingToDraw) {
  EXPECT_THAT(message_of([] { plot_of({}).svg(); }), HasSubstr("plot 'title': nothing to draw"));
  EXPECT_THAT(message_of([] { plot_of({{0, 1}, {1, -1}}).svg(); }), HasSubstr("nothing to draw"));
  train::Plot plot = plot_of({}, "empty");
  plot.add_curve("full", {{1, 1}});
  EXPECT_THAT(plot.svg(), HasSubstr("empty: no points"));
}

TEST(Plot, AFileThatCannotBeWrittenIsNamedWithTheReason) {
  EXPECT_THAT(message_of([] {
                plot_of({{1, 1}}).write("/nowhere/plot.svg");
              }),
              AllOf(HasSubstr("/nowhere/plot.svg"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message_of([] {
                plot_of({{1, 1}}).write("/dev/full");
              }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
}

}  // namespace
}  // namespace lockstep::bench
