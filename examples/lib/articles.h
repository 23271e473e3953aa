// The articles of Reuters for examples/reuters: word numbers with a topic, and the vocabulary that gives the numbers their words.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/json_lines.h"

namespace lockstep::examples {

// Of a folder with reuters_{train,test}.jsonl.gz, whose lines are {"label": 4, "tokens": [1, 3, ...]}, reuters_vocab.txt and
// reuters_topics.txt, a word and a topic a line. A sample is {tokens int64 (words of the article), label int64 (1)}. Reading a sample whose
// token or label has no line in those files is an InvalidArgument.
struct Articles {
  std::vector<std::string> words, topics;
  data::JsonLines known, test;  // known: to train with

  // FileError, which names the file.
  explicit Articles(const std::string& folder);
  Articles(const Articles&) = delete;  // the sets look into words and topics
  Articles& operator=(const Articles&) = delete;

 private:
  data::JsonLines lines(const std::string& path) const;
};

// Collective: what one rank cannot read is a FileError on all ranks, with that rank and its reason.
std::unique_ptr<const Articles> read_articles(const std::string& folder, ProcessGroup& group);

// A checkpoint knows numbers alone: beside it stands a file that tells the vocabulary of its training.
// Collective. FileError on all ranks when the folder's checkpoint was trained with other words. An empty folder name: nothing to compare.
void check_vocabulary(const std::string& checkpoint, const Articles& articles, ProcessGroup& group);
// Rank 0 writes that file, and makes the folder where it is missing. FileError when it cannot.
void keep_vocabulary(const std::string& checkpoint, const Articles& articles, const ProcessGroup& group);

}  // namespace lockstep::examples
