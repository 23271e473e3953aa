// The articles of Reuters for examples/reuters: word numbers with a topic, and the vocabulary that gives the numbers
// their words.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/reuters.h"

namespace lockstep::examples {

inline constexpr const char* kKerasReuters = "reuters.npz";

// Reads a folder with Keras' reuters.npz: 46 topics, and the words of reuters_word_index.json if that is there too.
// Without that file, a folder with reuters_{train,test}.jsonl.gz, whose lines are {"label": 4, "tokens": [1, 3, ...]},
// and with reuters_vocab.txt and reuters_topics.txt, which have one word or topic per line. A sample is {tokens int64
// (words of the article), label int64}. Reading a sample whose token or label has no line in those files throws
// InvalidArgument.
struct Articles {
  std::vector<std::string> words, topics;
  data::KeptDataset known, test;  // known: for training

  // Throws FileError, which names the file.
  explicit Articles(const std::string& folder);
  Articles(const Articles&) = delete;  // the sets refer to words and topics
  Articles& operator=(const Articles&) = delete;

 private:
  Articles(const std::string& folder, const std::optional<data::ReutersSplit>& keras);
  data::JsonLines lines(const std::string& path) const;
};

// Collective: if one rank cannot read the files, all ranks throw a FileError with that rank and its reason.
std::unique_ptr<const Articles> read_articles(const std::string& folder, ProcessGroup& group);

// A checkpoint has numbers only, so a file next to it says with which vocabulary it was trained. Collective. Throws
// FileError on all ranks if the folder's checkpoint was trained with other words. With an empty folder name there is
// nothing to compare.
void check_vocabulary(const std::string& checkpoint, const Articles& articles, ProcessGroup& group);
// Rank 0 writes that file, and creates the folder if necessary. Throws FileError when it cannot.
void keep_vocabulary(const std::string& checkpoint, const Articles& articles, const ProcessGroup& group);

}  // namespace lockstep::examples
