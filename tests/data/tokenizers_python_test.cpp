// Compares Tokenizer with Python's `tokenizers`, `sentencepiece` and `transformers`, which make_tokenizers.py runs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/data/files.h"
#include "lockstep/data/tokenizer.h"
#include "tests/support/temporary.h"

namespace lockstep::data {
namespace {

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
    if (expected.contains("differs")) return;  // what `transformers` gives was compared with `tokenizers`
    EXPECT_TRUE(tokenizer.decode(wanted) == text_of(expected.at("decoded")));
    EXPECT_TRUE(tokenizer.decode(wanted, {.skip_special_tokens = false}) == text_of(expected.at("decoded_all")));
  }

  static inline std::string reason_, folder_;
  static inline bool made_ = false;
  nlohmann::json cases_;
};

TEST_F(PythonTokenizers, GiveTheSameIdsAndTextsForTokenizerJson) { EXPECT_GT(compare(".json"), 100); }

TEST_F(PythonTokenizers, GiveTheSameIdsAndTextsForSentencePiece) { EXPECT_GT(compare(".model"), 10); }

}  // namespace
}  // namespace lockstep::data
