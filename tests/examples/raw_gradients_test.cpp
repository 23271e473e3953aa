// The example of docs/embedding.md prints the output promised in its opening comment, and the page shows its code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RawGradientsExample, PrintsWhatItPromises) {
  const std::string promised = promised_output(RAW_GRADIENTS_SOURCE);
  ASSERT_THAT(promised, HasSubstr("the loss fell"));
  Child example({LOCKRUN, "-n", "2", RAW_GRADIENTS});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  EXPECT_EQ(example.output(), promised);
}

TEST(RawGradientsExample, RunsOnThreeRanksAndAlone) {
  Child three({LOCKRUN, "-n", "3", RAW_GRADIENTS});
  EXPECT_EQ(three.wait(std::chrono::seconds(60)), 0) << three.errors();
  EXPECT_THAT(three.output(), HasSubstr("on 3 ranks"));
  Child alone({RAW_GRADIENTS});
  EXPECT_EQ(alone.wait(std::chrono::seconds(60)), 0) << alone.errors();
}

// Every line of code on the page is one of the example, whatever its indentation.
TEST(RawGradientsExample, IsWhatThePageShows) {
  const std::string source = text_of(RAW_GRADIENTS_SOURCE);
  std::istringstream page(text_of(EMBEDDING_PAGE));
  int lines = 0;
  bool is_code = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      is_code = line == "```cpp";
      continue;
    }
    const std::size_t begin = line.find_first_not_of(' ');
    if (!is_code || begin == std::string::npos) continue;
    EXPECT_THAT(source, HasSubstr(line.substr(begin)));
    ++lines;
  }
  EXPECT_GE(lines, 6);
}

}  // namespace
}  // namespace lockstep::testing
