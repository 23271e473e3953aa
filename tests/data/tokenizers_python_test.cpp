// Compares Tokenizer with Python's `tokenizers`, `sentencepiece` and `transformers`, which make_tokenizers.py runs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/data/files.h"
#include "lockstep/data/tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

class PythonTokenizers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* const python = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
    if (python == nullptr || *python == '\0') {
      reason_ = "LOCKSTEP_TEST_TORCH_PYTHON names no python with tokenizers and sentencepiece";
    } else if (std::system(fmt::format("{} -c 'import tokenizers, sentencepiece' 2>/dev/null", python).c_str()) != 0) {
      reason_ = fmt::format("{} has no packages tokenizers and sentencepiece", python);
    } else {
      folder_ = testing::temporary("tokenizers");
      std::filesystem::create_directory(folder_);
      made_ = std::system(fmt::format("{} {} {}", python, LOCKSTEP_MAKE_TOKENIZERS, folder_).c_str()) == 0;
    }
  }
  static void TearDownTestSuite() {
    std::error_code failure;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, failure);
  }
  void SetUp() override {
    if (!reason_.empty()) GTEST_SKIP() << reason_;
    ASSERT_TRUE(made_) << "make_tokenizers.py has failed";
    cases_ = nlohmann::json::parse(text_of("cases.json"));
  }

  static std::string path_of(const nlohmann::json& name) { return folder_ + "/" + name.get<std::string>(); }
  static std::string text_of(const nlohmann::json& name) {
    const std::vector<std::uint8_t> bytes = read_file(path_of(name));
    return {bytes.begin(), bytes.end()};
  }
  static std::vector<std::int64_t> ids_of(const nlohmann::json& name) {
    const std::string bytes = text_of(name);
    std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
    return {ids.begin(), ids.end()};
  }

  // Cases of files with this extension; returns how many.
  int compare(const std::string& extension) {
    std::map<std::string, Tokenizer> tokenizers;
    int compared = 0;
    for (const nlohmann::json& each : cases_) {
      const std::string path = path_of(each.at("tokenizer"));
      if (!path.ends_with(extension)) continue;
      SCOPED_TRACE(fmt::format("{} on {}", path, each.at("text").get<std::string>()));
      compare_case(tokenizers.try_emplace(path, path).first->second, each);
      ++compared;
    }
    return compared;
  }

 private:
  static void compare_case(const Tokenizer& tokenizer, const nlohmann::json& expected) {
    const EncodeOptions options{.add_special_tokens = expected.value("add_special_tokens", true),
                                .begin = expected.value("begin", false),
                                .end = expected.value("end", false)};
    std::vector<std::int64_t> ids;
    if (expected.contains("first")) {
      const PairEncoding pair = tokenizer.encode_pair(expected.at("first").get<std::string>(),
                                                      expected.at("second").get<std::string>(), options);
      EXPECT_EQ(pair.type_ids, expected.at("type_ids").get<std::vector<std::int64_t>>());
      ids = pair.ids;
    } else {
      const std::string text = text_of(expected.at("text"));
      const bool by_lines = expected.value("lines", false);
      for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = by_lines ? text.find('\n', begin) : std::string::npos;
        tokenizer.encode_to(std::string_view(text).substr(begin, end - begin), ids, options);
      }
    }
    const std::vector<std::int64_t> wanted = ids_of(expected.at("ids"));
    const auto [ours, theirs] = std::mismatch(ids.begin(), ids.end(), wanted.begin(), wanted.end());
    const auto at = ours - ids.begin();
    EXPECT_TRUE(ours == ids.end() && theirs == wanted.end())
        << "id " << at << " of " << ids.size() << ", expected " << wanted.size() << ": "
        << (ours == ids.end() ? "end" : tokenizer.token_of(*ours)) << ", expected "
        << (theirs == wanted.end() ? "end" : tokenizer.token_of(*theirs)) << ", behind '"
        << tokenizer.decode(std::span(wanted).subspan(static_cast<std::size_t>(std::max<std::int64_t>(at - 20, 0)),
                                                      static_cast<std::size_t>(std::min<std::int64_t>(at, 20))))
        << "'";
    for (const bool skips : {true, false})
      if (const char* const key = skips ? "decoded" : "decoded_all"; expected.contains(key)) {
        EXPECT_TRUE(tokenizer.decode(wanted, {.skip_special_tokens = skips}) == text_of(expected.at(key))) << key;
      }
  }

  static inline std::string reason_, folder_;
  static inline bool made_ = false;
  nlohmann::json cases_;
};

TEST_F(PythonTokenizers, GiveTheSameIdsAndTextsForTokenizerJson) { EXPECT_GT(compare(".json"), 100); }

TEST_F(PythonTokenizers, GiveTheSameIdsAndTextsForSentencePiece) { EXPECT_GT(compare(".model"), 10); }

TEST_F(PythonTokenizers, ModelsOfSentencePieceHaveTheirTokensAndMistakes) {
  const std::string path = path_of("bytes.model");
  const Tokenizer tokenizer(path);
  ASSERT_TRUE(tokenizer.id_of("<sep>").has_value());
  EXPECT_EQ(tokenizer.token_of(*tokenizer.id_of("<sep>")), "<sep>");
  EXPECT_EQ(tokenizer.id_of("there is no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.special_tokens().size(), 3U) << "<unk>, <s>, </s>";
  const std::vector<std::int64_t> outside = {0, tokenizer.vocabulary_size()};
  EXPECT_THAT(message_of([&] { (void)tokenizer.decode(outside); }),
              HasSubstr("at place 1 is not in the vocabulary of"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.encode_pair("a", "b"); }),
              HasSubstr("does not say how two texts are joined"));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(message_of([&] { Tokenizer{path}; }), HasSubstr(path + ": is not a model of SentencePiece: "));
  std::filesystem::resize_file(path, 0);
  EXPECT_THAT(message_of([&] { Tokenizer{path}; }), HasSubstr("the file is empty"));
}

TEST_F(PythonTokenizers, ModelsOfSentencePieceServeSeveralThreads) {
  const Tokenizer tokenizer(path_of("unigram.model"));
  const std::string text = text_of("languages.txt");
  const std::vector<std::int64_t> alone = tokenizer.encode(text);
  std::vector<int> equal(3);
  std::vector<std::thread> threads;
  for (int& each : equal)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) each += tokenizer.encode(text) == alone ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(20));
}

}  // namespace
}  // namespace lockstep::data
