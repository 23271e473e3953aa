// The comparison of devices prints the output promised in its opening comment, with and without a GPU.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> lines_of(std::istream& text) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// The second command of the opening comment and its promised output, except seconds.
struct Promise {
  std::vector<std::string> arguments, output;
};
Promise promised_figures() {
  std::ifstream source(DEVICE_MATMUL_SOURCE);
  Promise promise;
  for (std::string line; std::getline(source, line) && line.rfind("//", 0) == 0;) {
    const std::string command = "//   examples/device_matmul --";
    if (line.rfind(command, 0) == 0) {
      if (!promise.arguments.empty()) break;  // a third command
      std::istringstream words(line.substr(command.size() - 2));
      for (std::string word; words >> word;) promise.arguments.push_back(word);
    } else if (line.rfind("//   ", 0) == 0 && !promise.arguments.empty()) {
      promise.output.push_back(line.substr(5));
    }
  }
  return promise;
}

std::string without_seconds(const std::string& line) { return line.substr(0, line.rfind(" in ")); }

TEST(DeviceMatmulExample, BothDevicesFindTheSumThatItPromises) {
  const Promise promise = promised_figures();
  ASSERT_THAT(promise.output, SizeIs(3));
  std::vector<std::string> command = {DEVICE_MATMUL};
  command.insert(command.end(), promise.arguments.begin(), promise.arguments.end());
  Child example(command, {.unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  std::istringstream output(example.output());
  const auto lines = lines_of(output);
  ASSERT_THAT(lines, SizeIs(3)) << example.output();
  EXPECT_EQ(lines[0], promise.output[0]);
  EXPECT_EQ(without_seconds(lines[1]), without_seconds(promise.output[1]));
  if (lines[2].rfind("no GPU: ", 0) != 0) {
    EXPECT_EQ(without_seconds(lines[2]), without_seconds(promise.output[2]));
  } else {
    EXPECT_GT(lines[2].size(), std::string("no GPU: ").size() + 10) << "the reason is missing";
  }
}

// The numbers that TensorFlow draws with set_seed(0), and the digits that it prints for them.
TEST(DeviceMatmulExample, PrintsTheTutorialsDigits) {
  Child example({DEVICE_MATMUL, "--tutorial", "--device", "cpu"});
  EXPECT_EQ(example.wait(std::chrono::seconds(100)), 0) << example.output() << example.errors();
  std::istringstream output(example.output());
  const auto lines = lines_of(output);
  ASSERT_THAT(lines, SizeIs(4)) << example.output();
  EXPECT_EQ(lines[0], "[[22 28]");
  EXPECT_EQ(lines[1], " [49 64]] on cpu");
  EXPECT_EQ(lines[2], "10000x100 by 100x100000, product and its sum; TensorFlow prints 2.24953778e+11");
  EXPECT_EQ(without_seconds(lines[3]), "cpu: 2.24953778e+11");

  Child sizes({DEVICE_MATMUL, "--tutorial", "--rows", "2"});
  EXPECT_EQ(sizes.wait(), 2);
  EXPECT_THAT(sizes.errors(), HasSubstr("--tutorial has the tutorial's sizes: leave out --rows"));
}

// Blocks of one row, pieces of one element, and a prime number of columns.
TEST(DeviceMatmulExample, TakesAnySizes) {
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{"1", "1", "1"}, {"7", "3", "1009"}, {"3", "200000", "2"}}) {
    Child example({DEVICE_MATMUL, "--device", "cpu", "--rows", sizes[0], "--inner", sizes[1], "--columns", sizes[2]});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.output() << example.errors();
    EXPECT_THAT(example.output(), HasSubstr("cpu: sum "));
  }
}

TEST(DeviceMatmulExample, AMissingRequestedGpuIsAnError) {
  Child example({DEVICE_MATMUL, "--device", "cuda", "--rows", "2", "--columns", "2"},
                {.environment = {{"LOCKSTEP_CUDA_LIBRARY", "/nonexistent.so"}}, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 1) << example.output();
  EXPECT_THAT(example.errors(), HasSubstr("the file /nonexistent.so does not exist"));
}

TEST(DeviceMatmulExample, AWrongWordForTheDeviceIsAnError) {
  for (const char* word : {"gpu", "cuda:", "cuda:first"}) {
    Child example({DEVICE_MATMUL, "--rows", "2", "--columns", "2"}, {.environment = {{"LOCKSTEP_DEVICE", word}}});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 2) << example.output();
    EXPECT_THAT(example.errors(), HasSubstr("LOCKSTEP_DEVICE='" + std::string(word) + "'"));
  }
}

TEST(DeviceMatmulExample, RefusesWhatItCannotSumExactly) {
  for (const std::vector<std::string>& rows : {std::vector<std::string>{"--rows", "abc"}, {"--rows=abc"}}) {
    std::vector<std::string> words = {DEVICE_MATMUL, "--columns", "2"};
    words.insert(words.end(), rows.begin(), rows.end());
    Child wrong(words);
    EXPECT_EQ(wrong.wait(), 2);
    EXPECT_THAT(wrong.errors(), HasSubstr("error: --rows: "));
  }
  Child inner({DEVICE_MATMUL, "--inner", "2000000"});
  EXPECT_EQ(inner.wait(std::chrono::seconds(60)), 2);
  EXPECT_THAT(inner.errors(), HasSubstr("exact"));
  Child device({DEVICE_MATMUL, "--device", "tpu"});
  EXPECT_EQ(device.wait(std::chrono::seconds(60)), 2);
  EXPECT_THAT(device.errors(), HasSubstr("--device tpu"));
}

}  // namespace
}  // namespace lockstep::testing
