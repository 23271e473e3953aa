#include "lockstep/nn/state_dict.h"

#include <unordered_map>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

namespace {

// The differences between a module and a state dict, each as a phrase for people.
struct Differences {
  std::vector<std::string> missing, unexpected, different, repeated;
};

std::string type_and_shape(const Tensor& tensor) { return fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text()); }

// "; 2 missing from the state dict: 'a', 'b'"; nothing when there is none.
std::string listed(const char* what, const std::vector<std::string>& entries) {
  if (entries.empty()) return "";
  std::string text = fmt::format("; {} {}: ", entries.size(), what);
  for (std::size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "" : ", ") + entries[i];
  return text;
}

[[noreturn]] void refuse(const Module& module, const Differences& found, bool strict) {
  std::string text = fmt::format("load_state_dict: the state dict does not fit this {}, of which nothing was changed", module.kind());
  text += listed("missing from the state dict", found.missing);
  text += listed("unexpected in the state dict", found.unexpected);
  text += listed("different", found.different);
  text += listed("more than once in the state dict", found.repeated);
  if (!found.different.empty() || !found.repeated.empty())
    text += ". Give it the state dict of the same model, built with the same options";
  else if (strict)
    text += ". Give it the state dict of the same model, or load with .strict = false what the two have in common";
  throw InvalidArgument("{}", text);
}

}  // namespace

std::vector<NamedTensor> Module::state_dict() const {
  std::vector<NamedTensor> all = named_parameters();
  for (NamedTensor& buffer : named_buffers()) all.push_back(std::move(buffer));
  std::erase_if(all, [](const NamedTensor& entry) { return !entry.tensor.defined(); });
  return all;
}

IncompatibleKeys Module::load_state_dict(const std::vector<NamedTensor>& entries, const LoadStateDictOptions& options) {
  IncompatibleKeys keys;
  Differences found;
  std::unordered_map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : entries)
    if (!given.emplace(name, &tensor).second) found.repeated.push_back("'" + name + "'");
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  for (const auto& [name, own] : state_dict()) {
    const auto at = given.find(name);
    if (at == given.end()) {
      keys.missing_keys.push_back(name);
      found.missing.push_back(fmt::format("'{}' {}", name, type_and_shape(own)));
      continue;
    }
    const Tensor& source = *at->second;
    given.erase(at);
    if (!source.defined())
      found.different.push_back(fmt::format("'{}' is {} here, undefined in the state dict", name, type_and_shape(own)));
    else if (source.shape() != own.shape() || source.dtype() != own.dtype())
      found.different.push_back(fmt::format("'{}' is {} here, {} in the state dict", name, type_and_shape(own), type_and_shape(source)));
    else
      copies.emplace_back(own, source);
  }
  for (const auto& [name, tensor] : entries)  // in their order
    if (given.erase(name) != 0) {
      keys.unexpected_keys.push_back(name);
      found.unexpected.push_back(tensor.defined() ? fmt::format("'{}' {}", name, type_and_shape(tensor)) : fmt::format("'{}'", name));
    }
  if (!options.strict) found.missing.clear(), found.unexpected.clear();
  if (!found.missing.empty() || !found.unexpected.empty() || !found.different.empty() || !found.repeated.empty())
    refuse(*this, found, options.strict);
  for (const auto& [own, source] : copies) own.copy_from(source);
  return keys;
}

}  // namespace lockstep::nn
