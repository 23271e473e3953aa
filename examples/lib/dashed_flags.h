// Flags with underscores, as TensorFlow writes them: --num_gpus=2 is read as --num-gpus=2.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::examples {

class DashedFlags {
 public:
  DashedFlags(int argc, char** argv) {
    for (int i = 0; i < argc; ++i) {
      words_.emplace_back(argv[i]);
      std::string& word = words_.back();
      if (i > 0 && word.rfind("--", 0) == 0)
        std::replace(word.begin(), std::find(word.begin(), word.end(), '='), '_', '-');
    }
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  DashedFlags(const DashedFlags&) = delete;
  DashedFlags& operator=(const DashedFlags&) = delete;
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace lockstep::examples
