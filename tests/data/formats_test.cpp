// Tests of IDX, JSON lines, text and gzip: their contents, and that damage is an error with the file's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/data/idx.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/text.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using namespace std::string_literals;

template <typename T> std::vector<T> all_of(const Tensor& tensor) {
  const auto values = tensor.span<T>();
  return {values.begin(), values.end()};
}

std::string text_of_file(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes) {
  const auto bytes = read_file(path, max_bytes);
  return {bytes.begin(), bytes.end()};
}

// -- gzip

TEST(Gzip, IsUnpackedWhateverTheName) {
  std::string content;
  for (int i = 0; i < 40'000; ++i) content += std::to_string(i * 7919) + " ";
  const TestFile plain(content), packed(gzip(content)), members(gzip("one ") + gzip("") + gzip("two")), empty(gzip(""));
  EXPECT_EQ(text_of_file(plain.path()), content);
  EXPECT_EQ(text_of_file(packed.path()), content);
  EXPECT_EQ(text_of_file(members.path()), "one two");
  EXPECT_EQ(text_of_file(empty.path()), "");
}

TEST(Gzip, IsLimitedBeforeMemoryIsAllocated) {
  const TestFile bomb(gzip(std::string(std::size_t{64} << 20, '\0')));
  ASSERT_LT(std::filesystem::file_size(bomb.path()), 100'000U);
  EXPECT_THAT(message_of([&] { read_file(bomb.path(), 1 << 20); }),
              AllOf(HasSubstr(bomb.path()), HasSubstr("more than 1048576 bytes")));
  const TestFile exact(gzip(std::string(1000, 'x'))), plain(std::string(1000, 'x'));
  EXPECT_EQ(text_of_file(exact.path(), 1000).size(), 1000U);
  EXPECT_THAT(message_of([&] { read_file(exact.path(), 999); }), HasSubstr("more than 999 bytes"));
  EXPECT_THAT(message_of([&] { read_file(plain.path(), 999); }), HasSubstr("has 1000 bytes, more than 999"));
}

TEST(Gzip, HasNoLimitIfItIsTheLargestNumber) {
  const std::string content(100'000, 'x');
  const TestFile packed(gzip(content));
  EXPECT_EQ(text_of_file(packed.path(), std::numeric_limits<std::uint64_t>::max()), content);
}

TEST(Gzip, DamageIsNamed) {
  std::string packed = gzip("some text that is packed, and then damaged");
  const TestFile cut(packed.substr(0, packed.size() - 3)), more(packed + "more"), none("\x1f\x8b");
  EXPECT_THAT(message_of([&] { read_file(cut.path()); }),
              AllOf(HasSubstr(cut.path()), HasSubstr("is the file truncated?")));
  EXPECT_THAT(message_of([&] { read_file(more.path()); }), HasSubstr("is damaged: incorrect header check"));
  EXPECT_THAT(message_of([&] { read_file(none.path()); }), HasSubstr("ends after 2 bytes"));
  packed[packed.size() - 5] = static_cast<char>(packed[packed.size() - 5] ^ 1);
  const TestFile checksum(packed);
  EXPECT_THAT(message_of([&] { read_file(checksum.path()); }), HasSubstr("incorrect data check"));
  EXPECT_THAT(message_of([&] { read_file("/nowhere/file.gz"); }), HasSubstr("/nowhere/file.gz: cannot be opened"));
}

TEST(Files, FifosAndFoldersAreNamed) {
  const std::string path = testing::temporary("fifo");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { read_file(path); }), HasSubstr(path + ": is a FIFO"));
  std::filesystem::remove(path);
  EXPECT_THAT(message_of([&] { read_lines(::testing::TempDir()); }), HasSubstr("is a folder"));
}

// -- IDX

TEST(Idx, HoldsArraysOfSixTypes) {
  const TestFile bytes("\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\xff"s);
  EXPECT_EQ(read_idx(bytes.path()).shape(), (Shape{2, 3}));
  EXPECT_EQ(all_of<std::uint8_t>(read_idx(bytes.path())), (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 255}));
  const TestFile int8("\0\0\x09\x01\0\0\0\x01\xfe"s), int16("\0\0\x0b\x01\0\0\0\x02\x01\x02\xff\xfe"s),
      int32("\0\0\x0c\x01\0\0\0\x01\xff\xff\xff\xfd"s), float32("\0\0\x0d\x01\0\0\0\x01\x3f\xc0\0\0"s),
      float64(gzip("\0\0\x0e\x01\0\0\0\x01\xbf\xf8\0\0\0\0\0\0"s)), none("\0\0\x08\x01\0\0\0\0"s);
  EXPECT_EQ(all_of<std::int8_t>(read_idx(int8.path())), (std::vector<std::int8_t>{-2}));
  EXPECT_EQ(all_of<std::int32_t>(read_idx(int16.path())), (std::vector<std::int32_t>{258, -2}));
  EXPECT_EQ(all_of<std::int32_t>(read_idx(int32.path())), (std::vector<std::int32_t>{-3}));
  EXPECT_EQ(all_of<float>(read_idx(float32.path())), (std::vector<float>{1.5}));
  EXPECT_EQ(all_of<double>(read_idx(float64.path())), (std::vector<double>{-1.5}));
  EXPECT_EQ(read_idx(none.path()).count(), 0);
}

TEST(Idx, DamageIsNamed) {
  const TestFile type("\0\0\x0a\x01\0\0\0\x01\x01"s), extents("\0\0\x08\x07\0\0\0\x01"s),
      header("\0\0\x08\x02\0\0\0\x02"s), few("\0\0\x0d\x01\0\0\0\x02\0\0\0\0"s),
      huge("\0\0\x0e\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s);
  EXPECT_THAT(message_of([&] { read_idx(type.path()); }), HasSubstr(type.path() + ": is not an IDX file"));
  EXPECT_THAT(message_of([&] { read_idx(extents.path()); }), HasSubstr("has 7 extents"));
  EXPECT_THAT(message_of([&] { read_idx(header.path()); }), HasSubstr("8 bytes, but the header alone has 12"));
  EXPECT_THAT(message_of([&] { read_idx(few.path()); }),
              HasSubstr("has 4 bytes after its header, but its extents require 8"));
  EXPECT_THAT(message_of([&] { read_idx(huge.path()); }), HasSubstr("more than 64 bits count"));
}

std::string idx_images(int count) {
  std::string file = "\0\0\x08\x03\0\0\0"s + static_cast<char>(count) + "\0\0\0\x02\0\0\0\x02"s;
  for (int i = 0; i < 4 * count; ++i) file += static_cast<char>(i * 17);
  return file;
}

TEST(Idx, AnyDamageIsAnErrorOrAnotherArray) {
  const auto read = [](const std::string& path) { read_idx(path); };
  const std::string plain = idx_images(5), packed = gzip(plain);
  EXPECT_GE(refused_when_damaged(plain, read), static_cast<int>(plain.size())) << "every cut file is refused";
  EXPECT_GE(refused_when_damaged(packed, read), static_cast<int>(4 * packed.size()) - 3 * 10)
      << "every damaged file is refused, except bit flips in gzip's header";
}

TEST(Mnist, PairsImagesWithLabels) {
  const std::string folder = testing::temporary("mnist");
  std::filesystem::create_directory(folder);
  const auto write = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder + "/" + name, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
  };
  write("train-images-idx3-ubyte", idx_images(3));
  write("train-labels-idx1-ubyte.gz", gzip("\0\0\x08\x01\0\0\0\x03\x07\x08\x09"s));
  const Mnist train(folder);
  ASSERT_EQ(train.size(), 3);
  const Sample last = train.get(2, 0);
  EXPECT_EQ(last[0].shape(), (Shape{2, 2, 1}));
  EXPECT_EQ(all_of<float>(last[0]), (std::vector<float>{136.F / 255, 153.F / 255, 170.F / 255, 187.F / 255}));
  EXPECT_EQ(all_of<std::int64_t>(last[1]), (std::vector<std::int64_t>{9}));
  write("train-labels-idx1-ubyte.gz", gzip("\0\0\x08\x01\0\0\0\x02\x07\x08"s));
  EXPECT_THAT(message_of([&] { Mnist{folder}; }),
              HasSubstr("holds uint8 (2), expected one uint8 for each of 3 images"));
  EXPECT_THAT(message_of([&] { Mnist(folder, {.train = false}); }),
              HasSubstr("t10k-images-idx3-ubyte.gz: cannot be opened"));
  std::filesystem::remove_all(folder);
}

// -- JSON lines

Sample tokens_and_label(const nlohmann::json& record) {
  return {int64_tensor(record.at("tokens")), int64_tensor(record.at("label"))};
}

TEST(JsonLines, AreConvertedToSamplesByAFunction) {
  const std::string text = "{\"label\":4,\"tokens\":[1,3]}\r\n{\"tokens\":[],\"label\":-2}\n";
  for (const std::string& content : {text, gzip(text)}) {
    const TestFile file(content);
    const JsonLines set(file.path(), tokens_and_label);
    ASSERT_EQ(set.size(), 2);
    EXPECT_EQ(all_of<std::int64_t>(set.get(0, 0)[0]), (std::vector<std::int64_t>{1, 3}));
    EXPECT_EQ(set.get(0, 0)[1].shape(), Shape());
    EXPECT_EQ(set.get(1, 5)[0].shape(), (Shape{0}));
    set.get(0, 0)[0].span<std::int64_t>()[0] = 77;
    EXPECT_EQ(all_of<std::int64_t>(set.get(0, 0)[0])[0], 1) << "the caller owns a sample";
  }
  EXPECT_EQ(all_of<float>(float32_tensor(nlohmann::json::parse("[1, 2.5]"))), (std::vector<float>{1, 2.5}));
  EXPECT_THAT(message_of([] { float32_tensor(nlohmann::json::parse("[1, -1e39]")); }),
              HasSubstr("-1e+39 does not fit into float32"));
}

TEST(JsonLines, ErrorsNameTheLine) {
  const std::string good = "{\"label\":4,\"tokens\":[1,3]}\n";
  const auto error_of = [&](const std::string& line) {
    const TestFile file(good + line);
    const std::string error = message_of([&] { JsonLines(file.path(), tokens_and_label); });
    EXPECT_EQ(error.rfind(file.path() + ": line 2", 0), 0U) << error;
    return error;
  };
  EXPECT_THAT(error_of("{\"label\":4,"), HasSubstr("line 2, byte 12: is not a JSON value"));
  EXPECT_THAT(error_of("\n" + good), HasSubstr("is not a JSON value"));
  EXPECT_THAT(error_of("{\"label\":\"\xff\"}"), HasSubstr("is not a JSON value in UTF-8"));
  EXPECT_THAT(error_of("{\"label\":4}"), HasSubstr("tokens"));
  EXPECT_THAT(error_of("{\"label\":4,\"tokens\":[1.5]}"), HasSubstr("expected an integer, got a JSON fraction"));
  EXPECT_THAT(error_of("{\"label\":4,\"tokens\":[9223372036854775808]}"),
              HasSubstr("9223372036854775808 does not fit into int64"));
  EXPECT_THAT(error_of("{\"label\":4,\"tokens\":[[1]]}"), HasSubstr("got a JSON array"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("is not a JSON value"));
  const TestFile empty(""), file(good);
  EXPECT_THAT(message_of([&] { JsonLines(empty.path(), tokens_and_label); }), HasSubstr("has no lines"));
  EXPECT_THAT(message_of([&] { JsonLines(file.path(), {}); }), HasSubstr("is empty"));
  EXPECT_THAT(message_of([&] { JsonLines(file.path(), [](const nlohmann::json&) { return Sample{}; }); }),
              HasSubstr("a sample without tensors"));
}

TEST(JsonLines, AnyDamageIsAnErrorOrOtherSamples) {
  const std::string plain = "{\"label\":4,\"tokens\":[1,3]}\n{\"label\":5,\"tokens\":[2]}\n", packed = gzip(plain);
  const auto read = [](const std::string& path) { JsonLines(path, tokens_and_label); };
  EXPECT_GE(refused_when_damaged(plain, read), 60);
  EXPECT_GE(refused_when_damaged(packed, read), static_cast<int>(4 * packed.size()) - 3 * 10);
}

// -- text

TEST(Vocabulary, NumbersCharactersInTheOrderOfTheirCodePoints) {
  const CharacterVocabulary vocabulary(
      "b\xc3\xa4"
      "a\xe2\x82\xac\xf0\x9f\x99\x82"
      "ab\n");
  EXPECT_EQ(vocabulary.size(), 6);
  EXPECT_EQ(vocabulary.characters(), "\nab\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82");
  const std::vector<std::int64_t> numbers = {1, 3, 4, 5, 0};
  EXPECT_EQ(vocabulary.encode("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82\n"), numbers);
  EXPECT_EQ(vocabulary.decode(numbers), "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82\n");
  EXPECT_EQ(CharacterVocabulary(vocabulary.characters()).characters(), vocabulary.characters());
  EXPECT_THAT(message_of([&] { vocabulary.encode("ab?"); }), HasSubstr("byte 2 is the character U+003F"));
  const std::vector<std::int64_t> six = {6};
  EXPECT_THAT(message_of([&] { vocabulary.decode(six); }), HasSubstr("number 6 is out of range 0 to 5"));
  EXPECT_THAT(message_of([&] { CharacterVocabulary(""); }), HasSubstr("empty"));
}

TEST(Utf8, ErrorsNameTheInvalidByte) {
  for (const std::string& bad : {"\x80"s, "\xc0\xaf"s, "\xc3"s, "\xc3("s, "\xe0\x80\xaf"s, "\xed\xa0\x80"s,
                                 "\xf0\x80\x80\xaf"s, "\xf4\x90\x80\x80"s, "\xf5\x80\x80\x80"s, "\xff"s}) {
    const TestFile file("one\ntwo" + bad + "x");
    EXPECT_THAT(message_of([&] { CharacterDataset(file.path(), {.length = 2}); }),
                HasSubstr(file.path() + ": byte 7 (line 2), 0x"));
    EXPECT_THAT(message_of([&] { read_lines(file.path()); }), HasSubstr("is not UTF-8"));
  }
}

TEST(CharacterDataset, HasWindowsAndTheirSuccessors) {
  const TestFile file("abcdefghij");
  const CharacterDataset set(file.path(), {.length = 3});
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(all_of<std::int64_t>(set.get(2, 0)[0]), (std::vector<std::int64_t>{6, 7, 8}));
  EXPECT_EQ(all_of<std::int64_t>(set.get(2, 0)[1]), (std::vector<std::int64_t>{7, 8, 9}));
  const CharacterDataset dense(file.path(), {.length = 9, .stride = 1}),
      overlapping(file.path(), {.length = 3, .stride = 2});
  EXPECT_EQ(dense.size(), 1);
  EXPECT_EQ(overlapping.size(), 4);
  EXPECT_EQ(all_of<std::int64_t>(overlapping.get(3, 0)[0]), (std::vector<std::int64_t>{6, 7, 8}));
  EXPECT_THAT(message_of([&] { CharacterDataset(file.path(), {.length = 10}); }), HasSubstr("has 10 characters"));
  EXPECT_THAT(message_of([&] { CharacterDataset(file.path(), {.length = 0}); }), HasSubstr("length 0"));
  EXPECT_THAT(
      message_of([&] { CharacterDataset(file.path(), {.length = 2, .vocabulary = CharacterVocabulary("abc")}); }),
      HasSubstr(file.path() + ": CharacterVocabulary: byte 3 is the character U+0064"));
  const TestFile lines("one\r\ntwo\n\nlast");
  EXPECT_EQ(read_lines(lines.path()), (std::vector<std::string>{"one", "two", "", "last"}));
}

// -- published files

std::string real(const std::string& name) {
  const char* const folder = std::getenv("LOCKSTEP_DATA");
  const std::string path = folder == nullptr ? "" : std::string(folder) + "/" + name;
  return !path.empty() && std::filesystem::exists(path) ? path : "";
}

TEST(RealData, FashionMnist) {
  const std::string folder = real("fashion-mnist");
  if (folder.empty()) GTEST_SKIP() << "LOCKSTEP_DATA names no folder with fashion-mnist";
  const Mnist test(folder, {.train = false});
  ASSERT_EQ(test.size(), 10'000);
  EXPECT_EQ(test.element_spec()[0].shape, (Shape{28, 28, 1}));
  std::vector<int> counts(10);
  const DistributedSampler sampler(test.size(), {}, {.shuffle = false});
  for (const auto& [images, labels] : DataLoader(test, sampler, {.batch_size = 500, .num_workers = 2}))
    for (const std::int64_t label : labels.span<std::int64_t>()) ++counts.at(static_cast<std::size_t>(label));
  EXPECT_EQ(counts, std::vector<int>(10, 1000)) << "the published test set is balanced";
}

TEST(RealData, Reuters) {
  const std::string folder = real("reuters");
  if (folder.empty()) GTEST_SKIP() << "LOCKSTEP_DATA names no folder with reuters";
  const JsonLines test(folder + "/reuters_test.jsonl.gz", tokens_and_label);
  ASSERT_EQ(test.size(), 2568);
  EXPECT_EQ(read_lines(folder + "/reuters_topics.txt").size(), 52U);
  const DistributedSampler sampler(test.size(), {}, {.seed = 1});
  std::int64_t longest = 0, earn = 0;
  for (const auto& [tokens, labels] :
       DataLoader(test, sampler, {.batch_size = 64, .num_workers = 2, .collate = pad_collate()})) {
    longest = std::max(longest, tokens.shape()[1]);
    for (const std::int64_t label : labels.span<std::int64_t>()) earn += label == 12 ? 1 : 0;
  }
  EXPECT_EQ(longest, 848);
  EXPECT_EQ(earn, 1083);
}

TEST(RealData, TinyShakespeare) {
  const std::string path = real("tinyshakespeare/input.txt");
  if (path.empty()) GTEST_SKIP() << "LOCKSTEP_DATA names no folder with tinyshakespeare";
  const CharacterDataset set(path, {.length = 64});
  EXPECT_EQ(set.vocabulary().size(), 65);
  EXPECT_EQ(set.characters(), 1'115'394);
  EXPECT_EQ(set.vocabulary().decode(set.get(0, 0)[0].span<std::int64_t>()).substr(0, 14), "First Citizen:");
}

}  // namespace
}  // namespace lockstep::data
