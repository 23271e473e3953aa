// Reuters newswires with 46 topics: Keras' data set, from Keras' files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// The arguments of keras.datasets.reuters.load_data(), with its defaults.
struct ReutersOptions {
  // Words have numbers by frequency; those from num_words on, and the first skip_top, become oov_char, or are left out
  // if that is empty. Empty: the largest number that occurs, which itself becomes oov_char, as in Keras.
  std::optional<std::int64_t> num_words = {};
  std::int64_t skip_top = 0;
  std::optional<std::int64_t> maxlen = {};  // articles with this many words or more, start_char included, are left out
  double test_split = 0.2;                  // the share of the articles, from the end, that is for tests
  std::uint32_t seed = 113;                 // shuffles the articles before they are split
  std::optional<std::int64_t> start_char = 1;  // put in front of each article; empty: nothing
  std::optional<std::int64_t> oov_char = 2;
  std::int64_t index_from = 3;  // added to the words' numbers, so that 0 (padding), 1 and 2 stay free
  std::uint64_t max_bytes = kMaxFileBytes;
};

struct ReutersSplit;

// Sample i is {words (n) int64, topic () int64 in 0..45}. Articles have different lengths: make batches by
// pad_collate(). Copies share the articles.
class ReutersDataset : public Dataset {
 public:
  std::int64_t size() const override { return end_ - begin_; }
  Sample get(std::int64_t index, std::int64_t epoch) const override;

 private:
  friend ReutersSplit load_reuters(const std::string& path, const ReutersOptions& options);
  struct Articles;
  ReutersDataset(std::shared_ptr<const Articles> articles, std::int64_t begin, std::int64_t end)
      : articles_(std::move(articles)), begin_(begin), end_(end) {}

  std::shared_ptr<const Articles> articles_;
  std::int64_t begin_, end_;
};

struct ReutersSplit {
  ReutersDataset train, test;
};
//   const auto [train, test] = data::load_reuters("/root/.keras/datasets/reuters.npz", {.num_words = 1000});
// Reads Keras' file, whose arrays x (pickled lists of words) and y (topics) NumPy wrote, without running code from the
// pickle. Articles, words and order are those of Keras, whose shuffle is that of NumPy's RandomState(seed). Throws
// FileError with the path for a file that is missing, damaged or has other arrays, and InvalidArgument for options that
// make no sense or leave no article.
ReutersSplit load_reuters(const std::string& path, const ReutersOptions& options = {});

// Keras' get_word_index(): reads reuters_word_index.json, which gives each word its number, without index_from. Throws
// FileError with the path.
std::map<std::string, std::int64_t> reuters_word_index(const std::string& path);
// Keras' get_label_names(): the 46 topics, "cocoa", "grain", ..., by number.
const std::vector<std::string>& reuters_label_names();

}  // namespace lockstep::data
#pragma GCC visibility pop
