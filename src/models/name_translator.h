// Applies a NameMapping.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "lockstep/models/name_mapping.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::models {

struct TranslatedName {
  std::string name;  // empty: the tensor is skipped
  WeightLayout layout = {};
};

class NameTranslator {
 public:
  // Throws InvalidArgument for a pattern that is not a regular expression.
  explicit NameTranslator(const NameMapping& mapping);

  TranslatedName to_module(const std::string& name_in_file) const;
  TranslatedName to_file(const std::string& name_in_module) const;

 private:
  struct Rule {
    std::regex in_file;
    std::optional<std::regex> in_module;
    NameRule texts;
  };
  std::vector<Rule> rules_;
};

// A weight of a file in the layout of a module, and the reverse. `name` is for messages. Throws FileError for a shape
// that the layout cannot have.
Tensor in_module_layout(const Tensor& weight, const WeightLayout& layout, const std::string& name);
Tensor in_file_layout(const Tensor& weight, const WeightLayout& layout, const std::string& name);

}  // namespace lockstep::models
