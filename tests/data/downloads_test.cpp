// Files as browsers, archives, editors and repositories deliver them: usable ones are read, others are reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/data/cifar10.h"
#include "lockstep/data/idx.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/text.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using namespace std::string_literals;
namespace fs = std::filesystem;

class Downloads : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  const std::string folder_ = testing::temporary("downloads");
};

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}
std::string idx(const std::vector<std::uint32_t>& extents, const std::string& bytes) {
  std::string file = "\0\0\x08"s + static_cast<char>(extents.size());
  for (const std::uint32_t extent : extents) file += big_endian(extent);
  return file + bytes;
}

const std::string kMark = "\xef\xbb\xbf", kPage = "\n<!DOCTYPE html><html><head><title>Sign in</title>";
const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 123\n";

TEST_F(Downloads, FindsMnistUnderTheNamesOfItsArchives) {
  write("train-images.idx3-ubyte", idx({3, 2, 2}, std::string(12, '\1')));
  write("train-labels.idx1-ubyte.gz", gzip(idx({3}, "\1\2\3")));
  EXPECT_EQ(Mnist(folder_).size(), 3);
  EXPECT_THAT(message_of([&] { Mnist(folder_, {.train = false}); }), HasSubstr("/t10k-images-idx3-ubyte.gz"));
}

TEST_F(Downloads, IdxErrorsNameTheFile) {
  for (const auto& extents :
       {std::vector<std::uint32_t>{0, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff}, {3}}) {
    const std::string path = write("some.idx", idx(extents, ""));
    EXPECT_THAT(message_of([&] { read_idx(path); }), AnyOf(HasSubstr(path), "nothing was thrown"));
  }
}

TEST_F(Downloads, AByteOrderMarkIsNotACharacter) {
  EXPECT_THAT(read_lines(write("words.txt", kMark + "the\nof\n")), ElementsAre("the", "of"));
  EXPECT_EQ(CharacterDataset(write("text.txt", kMark + "abcabc"), {.length = 2}).vocabulary().characters(), "abc");
  const auto to_sample = [](const nlohmann::json& record) { return Sample{int64_tensor(record.at("x"))}; };
  EXPECT_EQ(JsonLines(write("a.jsonl", kMark + R"({"x": [1]})"), to_sample).size(), 1);
}

TEST_F(Downloads, ZerosAfterGzipDataArePadding) {
  const auto bytes = read_file(write("padded.gz", gzip("content") + std::string(512, '\0')));
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "content");
  EXPECT_THAT(message_of([&] { read_file(write("mixed.gz", gzip("content") + std::string(100, '\0') + "x")); }),
              HasSubstr("damaged"));
}

TEST_F(Downloads, JsonLinesNameNumbersThatJsonDoesNotHaveAndEndWithEmptyLines) {
  const auto to_sample = [](const nlohmann::json& record) { return Sample{int64_tensor(record.at("x"))}; };
  for (const std::string word : {"NaN", "Infinity", "-Infinity"}) {
    const std::string path = write("numbers.jsonl", "{\"x\": [1]}\n{\"x\": [1], \"y\": " + word + "}\n");
    EXPECT_THAT(message_of([&] { JsonLines(path, to_sample); }),
                AllOf(HasSubstr(path + ": line 2, byte "), HasSubstr(": " + word + " is not JSON")));
  }
  EXPECT_EQ(JsonLines(write("end.jsonl", "{\"x\": [1]}\n{\"x\": [2]}\n\n \r\n"), to_sample).size(), 2);
  EXPECT_THAT(message_of([&] { JsonLines(write("gap.jsonl", "{\"x\": [1]}\n\n{\"x\": [2]}\n"), to_sample); }),
              HasSubstr("line 2"));
}

TEST_F(Downloads, ABrowsersCopyOfABatchDoesNotCountTwice) {
  const std::string record = "\3"s + std::string(3072, '\0');
  for (const char* name : {"data_batch_1.bin", "data_batch_1 (1).bin", "data_batch_1.bin.part", "data_batch_.bin"})
    write(name, record + record);
  EXPECT_EQ(Cifar10(folder_, {.augment = false}).size(), 2);
  write("data_batch_2.bin", record);
  EXPECT_EQ(Cifar10(folder_, {.augment = false}).size(), 3);
}

TEST_F(Downloads, ErrorsIdentifyLfsPointersAndWebPages) {
  const auto to_sample = [](const nlohmann::json& record) { return Sample{int64_tensor(record.at("x"))}; };
  const auto lfs = HasSubstr("It is a Git LFS pointer, not the file itself: `git lfs pull`"),
             page = HasSubstr("It is a web page (HTML)");
  EXPECT_THAT(message_of([&] { read_idx(write("a.idx", kPointer)); }), lfs);
  EXPECT_THAT(message_of([&] { read_idx(write("a.idx", kPage)); }), page);
  EXPECT_THAT(message_of([&] { JsonLines(write("a.jsonl", kPointer), to_sample); }), lfs);
  EXPECT_THAT(message_of([&] { JsonLines(write("a.jsonl", kPage.substr(1)), to_sample); }), page);
  EXPECT_THAT(message_of([&] { read_lines(write("a.txt", kPointer)); }), lfs);
  EXPECT_EQ(read_lines(write("a.txt", kPage)).size(), 2U) << "a page may be the intended text";
  write("data_batch_1.bin", kPointer);
  EXPECT_THAT(message_of([&] { Cifar10(folder_, {.augment = false}); }), lfs);
  write("data_batch_1.bin", kPage);
  EXPECT_THAT(message_of([&] { Cifar10(folder_, {.augment = false}); }), page);
}

}  // namespace
}  // namespace lockstep::data
