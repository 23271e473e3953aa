#include "lockstep/data/reuters.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "lockstep/core/error.h"
#include "src/data/formats/npz.h"

namespace lockstep::data {

namespace {

using Article = std::vector<std::int64_t>;

void check_options(const ReutersOptions& options) {
  if (!(options.test_split >= 0 && options.test_split <= 1))
    throw InvalidArgument("load_reuters: test_split {} is outside 0..1", options.test_split);
  if (options.skip_top < 0 || options.num_words.value_or(1) < 1 || options.maxlen.value_or(1) < 1)
    throw InvalidArgument("load_reuters: skip_top {} must not be negative, num_words {} and maxlen {} must be positive",
                          options.skip_top, options.num_words.value_or(1), options.maxlen.value_or(1));
}

// The legacy shuffle of numpy.random.RandomState: MT19937, whose seeding is that of std::mt19937, and for each position
// from the end a number up to it, drawn again while its masked bits are too large (numpy/random/mtrand.pyx, shuffle;
// src/distributions/distributions.c, random_interval).
std::vector<std::size_t> shuffled_as_numpy(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t last = count; last-- > 1;) {
    std::uint32_t mask = static_cast<std::uint32_t>(last);
    for (int shift = 1; shift <= 16; shift *= 2) mask |= mask >> shift;
    std::uint32_t chosen = 0;
    do chosen = static_cast<std::uint32_t>(random()) & mask;
    while (chosen > last);
    std::swap(order[last], order[chosen]);
  }
  return order;
}

Article numbered(const Article& words, const ReutersOptions& options) {
  Article article;
  if (options.start_char) article.push_back(*options.start_char);
  for (const std::int64_t word : words) article.push_back(word + options.index_from);
  return article;
}

void limit_words(Article& article, std::int64_t num_words, const ReutersOptions& options) {
  const auto is_left_out = [&](std::int64_t word) { return word < options.skip_top || word >= num_words; };
  if (options.oov_char)
    std::replace_if(article.begin(), article.end(), is_left_out, *options.oov_char);
  else
    std::erase_if(article, is_left_out);
}

std::int64_t largest_word(const std::vector<Article>& articles) {
  std::int64_t largest = std::numeric_limits<std::int64_t>::min();
  for (const Article& article : articles)
    for (const std::int64_t word : article) largest = std::max(largest, word);
  return largest;
}

}  // namespace

struct ReutersDataset::Articles {
  std::vector<Article> words;
  std::vector<std::int64_t> topics;
};

Sample ReutersDataset::get(std::int64_t index, std::int64_t) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("ReutersDataset: sample {} does not exist: there are {}", index, size());
  const auto at = static_cast<std::size_t>(begin_ + index);
  const Article& words = articles_->words[at];
  return {Tensor::from(std::span<const std::int64_t>(words), {static_cast<std::int64_t>(words.size())}, cpu_device()),
          scalar(articles_->topics[at])};
}

ReutersSplit load_reuters(const std::string& path, const ReutersOptions& options) {
  check_options(options);
  const NpzFile file(path, options.max_bytes);
  const std::vector<Article> words = file.lists("x");
  const std::vector<std::int64_t> topics = file.numbers("y");
  if (words.size() != topics.size())
    throw FileError("{}: x has {} articles, but y has {} topics", path, words.size(), topics.size());
  const auto known = static_cast<std::int64_t>(reuters_label_names().size());
  for (std::size_t i = 0; i < topics.size(); ++i)
    if (topics[i] < 0 || topics[i] >= known)
      throw FileError("{}: topic {} of article {} is outside 0..{}", path, topics[i], i, known - 1);
  auto articles = std::make_shared<ReutersDataset::Articles>();
  for (const std::size_t from : shuffled_as_numpy(words.size(), options.seed)) {
    Article article = numbered(words[from], options);
    if (options.maxlen && static_cast<std::int64_t>(article.size()) >= *options.maxlen) continue;
    articles->words.push_back(std::move(article));
    articles->topics.push_back(topics[from]);
  }
  if (articles->words.empty())
    throw InvalidArgument("load_reuters: no article is left of {}: all have at least maxlen {} words", words.size(),
                          options.maxlen.value_or(0));
  const std::int64_t num_words = options.num_words ? *options.num_words : largest_word(articles->words);
  for (Article& article : articles->words) limit_words(article, num_words, options);
  const auto all = static_cast<std::int64_t>(articles->words.size());
  const auto split = static_cast<std::int64_t>(static_cast<double>(all) * (1 - options.test_split));
  return {ReutersDataset(articles, 0, split), ReutersDataset(articles, split, all)};
}

std::map<std::string, std::int64_t> reuters_word_index(const std::string& path) {
  const std::vector<std::uint8_t> bytes = read_file(path);
  try {
    return nlohmann::json::parse(bytes).get<std::map<std::string, std::int64_t>>();
  } catch (const nlohmann::json::exception& error) {
    throw FileError("{}: is not a JSON object that gives each word a number, as reuters_word_index.json: {}", path,
                    error.what());
  }
}

const std::vector<std::string>& reuters_label_names() {
  static const std::vector<std::string> kNames = {
      "cocoa",     "grain",        "veg-oil", "earn",       "acq",      "wheat",    "copper",
      "housing",   "money-supply", "coffee",  "sugar",      "trade",    "reserves", "ship",
      "cotton",    "carcass",      "crude",   "nat-gas",    "cpi",      "money-fx", "interest",
      "gnp",       "meal-feed",    "alum",    "oilseed",    "gold",     "tin",      "strategic-metal",
      "livestock", "retail",       "ipi",     "iron-steel", "rubber",   "heat",     "jobs",
      "lei",       "bop",          "zinc",    "orange",     "pet-chem", "dlr",      "gas",
      "silver",    "wpi",          "hog",     "lead"};
  return kNames;
}

}  // namespace lockstep::data
