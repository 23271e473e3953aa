// Keras' Reuters: files as NumPy writes them give the articles of keras.datasets.reuters.load_data(), and damaged or
// other files are refused.
#include "lockstep/data/reuters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/data/pipeline.h"
#include "src/data/formats/npz.h"
#include "src/data/formats/pickle.h"
#include "src/data/formats/zip.h"
#include "tests/data/files_for_tests.h"
#include "tests/data/recorded_reuters.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Lists = std::vector<std::vector<std::int64_t>>;

std::string text_of_bytes(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void expect_articles(const ReutersDataset& set, const Lists& words, const std::vector<std::int64_t>& topics) {
  ASSERT_EQ(set.size(), static_cast<std::int64_t>(words.size()));
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Sample sample = set.get(static_cast<std::int64_t>(i), 0);
    const auto tokens = sample[0].span<std::int64_t>();
    EXPECT_EQ(std::vector<std::int64_t>(tokens.begin(), tokens.end()), words[i]) << "article " << i;
    EXPECT_EQ(sample[1].span<std::int64_t>()[0], topics[i]);
    EXPECT_EQ(sample[1].shape(), Shape());
  }
}

void expect_recorded(const ReutersSplit& split, const RecordedReuters& recorded) {
  expect_articles(split.train, recorded.train, recorded.train_topics);
  expect_articles(split.test, recorded.test, recorded.test_topics);
}

TEST(Reuters, HasTheArticlesWordsAndOrderOfKeras) {
  for (const auto& bytes : {kNewReutersFile, kOldReutersFile}) {
    const TestFile file(text_of_bytes(bytes), "reuters.npz");
    expect_recorded(load_reuters(file.path()), kReutersByDefault);
    expect_recorded(
        load_reuters(file.path(), {.num_words = 100, .skip_top = 6, .maxlen = 9, .test_split = 0.5, .seed = 1}),
        kReutersOfFewWords);
    expect_recorded(load_reuters(file.path(), {.num_words = 300, .start_char = {}, .oov_char = {}, .index_from = 0}),
                    kReutersWithoutMarks);
  }
}

TEST(Reuters, AFileThatNumPyWritesNowHasTheArticlesOfKeras) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "LOCKSTEP_TEST_PYTHON names no python with numpy";
  const TestFile file("", "written.npz"), answer("", "answer.json");
  const std::string command =
      fmt::format("'{}' '{}' '{}' > '{}'", python, RECORDED_REUTERS, file.path(), answer.path());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto bytes = read_file(answer.path());
  const auto expected = nlohmann::json::parse(bytes);
  const ReutersSplit split = load_reuters(file.path(), {.num_words = 1000});
  EXPECT_EQ(split.train.size(), 240);
  expect_articles(split.train, expected.at("train").get<Lists>(),
                  expected.at("train_topics").get<std::vector<std::int64_t>>());
  expect_articles(split.test, expected.at("test").get<Lists>(),
                  expected.at("test_topics").get<std::vector<std::int64_t>>());
}

// The real file is not part of the repository.
TEST(Reuters, KerasOwnFileHasItsKnownSizes) {
  const char* folder = std::getenv("LOCKSTEP_DATA");
  const std::string path = fmt::format("{}/reuters/reuters.npz", folder == nullptr ? "" : folder);
  if (folder == nullptr || !std::filesystem::exists(path))
    GTEST_SKIP() << "there is no LOCKSTEP_DATA/reuters/reuters.npz";
  const ReutersSplit split = load_reuters(path, {.num_words = 1000});
  EXPECT_EQ(split.train.size(), 8982);
  EXPECT_EQ(split.test.size(), 2246);
  EXPECT_EQ(split.train.get(0, 0)[1].span<std::int64_t>()[0], 3);
}

TEST(Reuters, MakesBatchesByPadding) {
  const TestFile file(text_of_bytes(kNewReutersFile), "reuters.npz");
  const ReutersSplit split = load_reuters(file.path());
  auto batches = Pipeline(split.train)
                     .batch(4, pad_collate({.front = true, .max_length = 6, .to_max_length = true, .cut_front = true}))
                     .epoch(0);
  std::int64_t samples = 0;
  for (auto& [words, topics] : batches) {
    EXPECT_EQ(words.shape(), (Shape{topics.shape()[0], 6}));
    samples += topics.shape()[0];
  }
  EXPECT_EQ(samples, 19);
}

TEST(Reuters, HasKerasTopicsAndWordNumbers) {
  ASSERT_EQ(reuters_label_names().size(), 46U);
  EXPECT_EQ(reuters_label_names()[3], "earn");
  EXPECT_EQ(reuters_label_names()[45], "lead");
  const TestFile index("{\"the\": 1, \"of\": 2, \"mdbl\": 10996}", "reuters_word_index.json");
  EXPECT_EQ(reuters_word_index(index.path()).at("mdbl"), 10996);
  const TestFile wrong("[1, 2]");
  EXPECT_THAT(message_of([&] { reuters_word_index(wrong.path()); }),
              AllOf(HasSubstr(wrong.path()), HasSubstr("is not a JSON object that gives each word a number")));
}

TEST(Reuters, RefusesOptionsThatMakeNoSense) {
  const TestFile file(text_of_bytes(kNewReutersFile), "reuters.npz");
  const auto load = [&](const ReutersOptions& options) {
    return message_of([&] { load_reuters(file.path(), options); });
  };
  EXPECT_THAT(load({.test_split = 1.5}), HasSubstr("load_reuters: test_split 1.5 is outside 0..1"));
  EXPECT_THAT(load({.num_words = 0}), HasSubstr("num_words 0 and maxlen 1 must be positive"));
  EXPECT_THAT(load({.skip_top = -1}), HasSubstr("skip_top -1 must not be negative"));
  EXPECT_THAT(load({.maxlen = 2}), HasSubstr("no article is left of 24: all have at least maxlen 2 words"));
  EXPECT_THAT(message_of([&] { load_reuters(file.path()).test.get(5, 0); }), HasSubstr("sample 5 does not exist"));
  EXPECT_THAT(message_of([] { load_reuters("/nonexistent/reuters.npz"); }), HasSubstr("/nonexistent/reuters.npz"));
}

// Every cut and every flipped bit is noticed by the archive's checksums, or makes the same articles.
TEST(Reuters, RefusesDamagedFiles) {
  EXPECT_GT(refused_when_damaged(text_of_bytes(kOldReutersFile), [](const std::string& path) { load_reuters(path); }),
            1000);
}

std::string refusal_of_pickle(const std::string& text) {
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  return message_of([&] { unpickle(bytes, "x.npz"); });
}

// A pickle may name any function. None is called, and the opcodes for other objects are refused.
TEST(Pickle, RunsNothing) {
  const std::string call(
      "\x80\x02"
      "cos\nsystem\nX\x04\x00\x00\x00trueq\x00\x85R.",
      28);
  const Pickle pickle = unpickle(std::vector<std::uint8_t>(call.begin(), call.end()), "x.npz");
  EXPECT_EQ(pickle.value->kind, PickleValue::Kind::kCall);
  EXPECT_EQ(pickle.value->items[0]->text, "os.system");
  EXPECT_THAT(refusal_of_pickle("\x80\x02}."), HasSubstr("x.npz: byte 2 of the pickle has opcode 0x7d"));
  EXPECT_THAT(refusal_of_pickle("\x80\x09."), HasSubstr("begins protocol 9; 2 to 5 can be read"));
  EXPECT_THAT(refusal_of_pickle("\x80\x02]"), HasSubstr("the pickle is truncated"));
  EXPECT_THAT(refusal_of_pickle("\x80\x02"
                                "e."),
              HasSubstr("needs a mark"));
  EXPECT_THAT(refusal_of_pickle("\x80\x02\x85."), HasSubstr("byte 2 of the pickle takes a value from an empty stack"));
  EXPECT_THAT(refusal_of_pickle("\x80\x02h\x01."), HasSubstr("recalls value 1, which was not kept"));
  EXPECT_THAT(refusal_of_pickle("\x80\x02K\x01K\x01"
                                "a."),
              HasSubstr("appends to a value that is not a list"));
}

// Little-endian.
std::string number_text(std::size_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// A .npz file with one array of int64, whose header says that it has this shape.
std::string npz_of(const std::string& shape, std::size_t values) {
  const std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (" + shape + "), }\n";
  const std::string member =
      std::string("\x93NUMPY\x01\x00", 8) + number_text(header.size(), 2) + header + std::string(8 * values, '\x00');
  const std::string name = "y.npy", sizes = number_text(member.size(), 4) + number_text(member.size(), 4);
  const std::string crc =
      number_text(::crc32(0, reinterpret_cast<const Bytef*>(member.data()), static_cast<uInt>(member.size())), 4);
  const std::string common =
      number_text(20, 2) + std::string(8, '\x00') + crc + sizes + number_text(name.size(), 2) + number_text(0, 2);
  const std::string local = "PK\x03\x04" + common + name + member;
  const std::string entry = "PK\x01\x02" + number_text(20, 2) + common + std::string(14, '\x00') + name;
  return local + entry + "PK\x05\x06" + number_text(0, 4) + number_text(1, 2) + number_text(1, 2) +
         number_text(entry.size(), 4) + number_text(local.size(), 4) + number_text(0, 2);
}

TEST(Npz, TakesOneDimensionOfTheSizeThatTheFileHas) {
  const auto read = [](const std::string& shape, std::size_t values) {
    const TestFile file(npz_of(shape, values), "made.npz");
    return NpzFile(file.path(), kMaxFileBytes).numbers("y");
  };
  EXPECT_EQ(read("3,", 3), std::vector<std::int64_t>(3));
  EXPECT_EQ(read("0,", 0), std::vector<std::int64_t>());
  for (const char* shape : {",", "", "3", "3, 1", "-3,", "x,", "3,,", "99999999999999999999,", "2305843009213693952,"})
    EXPECT_THAT(message_of([&] { read(shape, 3); }), HasSubstr(fmt::format("array 'y' has the shape ({})", shape)));
  EXPECT_THAT(message_of([&] { read("4,", 3); }),
              HasSubstr("array 'y' has 24 bytes of values; its shape (4,) needs 32"));
  EXPECT_THAT(message_of([&] { read("2,", 3); }),
              HasSubstr("array 'y' has 24 bytes of values; its shape (2,) needs 16"));
}

TEST(Npz, NamesTheArrayThatDoesNotFit) {
  const TestFile file(text_of_bytes(kNewReutersFile), "reuters.npz");
  const NpzFile npz(file.path(), kMaxFileBytes);
  EXPECT_THAT(message_of([&] { npz.numbers("z"); }), HasSubstr("has no member 'z.npy', only x.npy, y.npy"));
  EXPECT_THAT(message_of([&] { npz.numbers("x"); }), HasSubstr("array 'x' has the type '|O'; expected int64"));
  EXPECT_THAT(message_of([&] { npz.lists("y"); }), HasSubstr("array 'y' has the type '<i8'; expected objects"));
  EXPECT_THAT(message_of([&] { NpzFile(file.path(), 100); }), HasSubstr(file.path()));
  const TestFile html("<html>not found</html>");
  EXPECT_THAT(message_of([&] { load_reuters(html.path()); }), HasSubstr("is not a zip archive"));
}

}  // namespace
}  // namespace lockstep::data
