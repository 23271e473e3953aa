// Bar charts, and the program that draws the pictures of the documentation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "bench/lib/bar_chart.h"
#include "lockstep/core/error.h"
#include "tests/faults/child.h"
#include "tests/support/message_of.h"

namespace lockstep::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kRoot = LOCKSTEP_SOURCE_ROOT;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(BarChart, DrawsEachGroupToTheScaleOfItsLongestBar) {
  const BarChart chart{
      "title", {{"one", "", {{"ours", 1, "1 ms"}, {"theirs", 2, "2 ms"}}}, {"two", "", {{"ours", 5, "5 us"}}}}, {}};
  const std::string svg = chart.svg();
  EXPECT_THAT(svg, AllOf(HasSubstr("width=\"165.0\""), HasSubstr("width=\"330.0\""), HasSubstr(">2 ms<"),
                         HasSubstr(">theirs<")));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark")) << "readable on a dark ground as well";
}

TEST(BarChart, RefusesABarWithoutALength) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message_of([&] {
                BarChart{"t", {{"g", "", {{"b", nan, ""}}}}, {}}.svg();
              }),
              HasSubstr("b of 'g' is nan"));
  EXPECT_THAT(message_of([] { BarChart{"t", {}, {}}.svg(); }), HasSubstr("nothing to draw"));
}

class PlotProgram : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(picture_); }
  std::string draw(const std::string& result) {
    testing::Child child({PLOT, kRoot + "/" + result, picture_});
    EXPECT_EQ(child.wait(), 0) << child.errors();
    return text_of(picture_);
  }
  const std::string picture_ = ::testing::TempDir() + "plot-" + std::to_string(::getpid()) + ".svg";
};

TEST_F(PlotProgram, DrewThePicturesOfTheDocumentation) {
  EXPECT_EQ(draw("docs/results/figures.json"), text_of(kRoot + "/docs/figures.svg")) << "run scripts/plot-figures";
  EXPECT_EQ(draw("bench/results/cifar10.json"), text_of(kRoot + "/docs/cifar10_accuracy.svg"))
      << "run scripts/plot-figures";
}

TEST_F(PlotProgram, SaysWhatAFileLacks) {
  testing::Child other({PLOT, "/dev/null", picture_}), missing({PLOT, "/nowhere.json", picture_}), alone({PLOT});
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.errors(), HasSubstr("has neither \"groups\" of bars nor \"epochs\""));
  EXPECT_NE(missing.wait(), 0);
  EXPECT_THAT(missing.errors(), HasSubstr("/nowhere.json: cannot be read"));
  EXPECT_EQ(alone.wait(), 2);
  EXPECT_THAT(alone.errors(), HasSubstr("got 0 arguments, expected two"));
}

}  // namespace
}  // namespace lockstep::bench
