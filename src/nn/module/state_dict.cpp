#include "lockstep/nn/state_dict.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/module.h"
#include "src/nn/module/convolutions.h"
#include "src/nn/module/older_names.h"

namespace lockstep::nn {

namespace {

// The differences between a module and a state dict, each as a phrase for users.
struct Differences {
  std::vector<std::string> missing, unexpected, different, repeated, of_unknown_layout;
  std::string hint;
};

std::string type_and_shape(const Tensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().text());
}

// "; 2 missing from the state dict: 'a', 'b'"; empty if there are none.
std::string listed(const char* what, const std::vector<std::string>& entries) {
  if (entries.empty()) return "";
  std::string text = fmt::format("; {} {}: ", entries.size(), what);
  for (std::size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "" : ", ") + entries[i];
  return text;
}

[[noreturn]] void refuse(const Module& module, const Differences& found, bool strict) {
  std::string text =
      fmt::format("load_state_dict: the state dict does not fit this {}, which was not changed", module.kind());
  text += listed("missing from the state dict", found.missing);
  text += listed("unexpected in the state dict", found.unexpected);
  text += listed("different", found.different);
  text += listed("more than once in the state dict", found.repeated);
  text += listed("convolution weights whose layout the file does not specify", found.of_unknown_layout);
  if (!found.of_unknown_layout.empty())
    text +=
        ". Load with .convolution_weights = ConvolutionWeights::kOihw (out, in, height, width) if the file is "
        "PyTorch's, or kOhwi if they "
        "are Lockstep's (out, height, width, in)";
  else if (!found.hint.empty())
    text += ". " + found.hint;
  else if (!found.different.empty() || !found.repeated.empty())
    text += ". Load the state dict of the same model, built with the same options";
  else if (strict)
    text += ". Load the state dict of the same model, or use .strict = false to load what the two have in common";
  throw InvalidArgument("{}", text);
}

// The paths of the layers of batch normalisation, each with a dot at its end.
void collect_batch_norms(const Module& module, const std::string& path, std::set<std::string>& paths) {
  if (dynamic_cast<const BatchNorm*>(&module) != nullptr) paths.insert(path);
  for (const auto& [name, child] : module.children()) collect_batch_norms(*child, path + name + ".", paths);
}
std::set<std::string> batch_norms_of(const Module& module) {
  std::set<std::string> paths;
  collect_batch_norms(module, "", paths);
  return paths;
}

bool is_floating(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || type == DType::kFloat16 || type == DType::kBFloat16;
}

Tensor converted(const Tensor& source, DType type) {
  if (source.dtype() == type) return source;
  Tensor floats = source;
  if (source.dtype() == DType::kFloat64) {
    const Tensor host = source.to(cpu_device());
    floats = Tensor::empty(source.shape(), DType::kFloat32, cpu_device());
    std::transform(host.data<double>(), host.data<double>() + host.count(), floats.data<float>(),
                   [](double value) { return static_cast<float>(value); });
  }
  return cast(floats, type);
}

// One call of load_state_dict().
class Loading {
 public:
  Loading(const Module& module, ConvolutionWeights layout)
      : convolutions_(convolutions_of(module)), batch_norms_(batch_norms_of(module)), layout_(layout) {}

  void take(const std::vector<NamedTensor>& entries) {
    for (const auto& [name, tensor] : entries)
      if (!given_.emplace(name, &tensor).second) found_.repeated.push_back("'" + name + "'");
  }

  void match(const std::string& name, const Tensor& own) {
    auto at = given_.find(name);
    if (const auto older = older_name_of(name); older && at == given_.end()) at = given_.find(*older);
    if (at == given_.end()) {
      missing_.push_back({name, own});
      return;
    }
    const Tensor& source = *at->second;
    given_.erase(at);
    if (!source.defined()) {
      found_.different.push_back(
          fmt::format("'{}' is {} here, undefined in the state dict", name, type_and_shape(own)));
      return;
    }
    const bool is_convolution = convolutions_.count(name) != 0;
    if (is_convolution && layout_ == ConvolutionWeights::kAsTheFileSays) {
      found_.of_unknown_layout.push_back(fmt::format("'{}' {}", name, source.shape().text()));
      return;
    }
    const bool permutes =
        is_convolution && layout_ == ConvolutionWeights::kOihw && source.shape().dims() == own.shape().dims();
    const bool converts = source.dtype() == own.dtype() ||
                          (is_floating(source.dtype()) && is_floating(own.dtype()) && own.dtype() != DType::kFloat64);
    const Tensor fitted = converts && permutes ? channels_last(converted(source, own.dtype())) : source;
    if (fitted.shape() != own.shape() || !converts)
      found_.different.push_back(
          fmt::format("'{}' is {} here, {} in the state dict", name, type_and_shape(own), type_and_shape(source)));
    else
      copies_.emplace_back(own, fitted);
  }

  // Runs after all names are matched: tied weights may be present under another name.
  void settle(const std::vector<NamedTensor>& entries, IncompatibleKeys& keys) {
    std::unordered_map<const std::byte*, const Tensor*> loaded;  // by their memory
    for (const auto& [own, source] : copies_) loaded.emplace(own.buffer().data(), &own);
    for (const auto& [name, own] : missing_) {
      const auto tied = loaded.find(own.buffer().data());
      if (tied != loaded.end() && tied->second->shape() == own.shape() && tied->second->dtype() == own.dtype())
        continue;
      keys.missing_keys.push_back(name);
      found_.missing.push_back(fmt::format("'{}' {}", name, type_and_shape(own)));
    }
    for (const auto& [name, tensor] : entries)  // in their order
      if (given_.erase(name) != 0 && !is_count_of_batches(name)) {
        keys.unexpected_keys.push_back(name);
        found_.unexpected.push_back(tensor.defined() ? fmt::format("'{}' {}", name, type_and_shape(tensor))
                                                     : fmt::format("'{}'", name));
      }
    found_.hint = prefix_hint(keys);
  }

  void finish(const Module& module, bool strict) {
    if (!strict) found_.missing.clear(), found_.unexpected.clear();
    if (!found_.missing.empty() || !found_.unexpected.empty() || !found_.different.empty() ||
        !found_.repeated.empty() || !found_.of_unknown_layout.empty())
      refuse(module, found_, strict);
    for (const auto& [own, source] : copies_) own.copy_from(converted(source, own.dtype()));
  }

 private:
  // Wrappers of other frameworks put a prefix before every name ("module.", "_orig_mod.", "model.").
  static std::string prefix_hint(const IncompatibleKeys& keys) {
    if (keys.missing_keys.empty() || keys.unexpected_keys.empty()) return "";
    const std::string& first = keys.unexpected_keys.front();
    const std::string prefix = first.substr(0, first.find('.') + 1);
    if (prefix.empty()) return "";
    const std::set<std::string> wanted(keys.missing_keys.begin(), keys.missing_keys.end());
    const bool fits =
        std::all_of(keys.unexpected_keys.begin(), keys.unexpected_keys.end(), [&](const std::string& name) {
          return name.starts_with(prefix) && wanted.count(name.substr(prefix.size())) != 0;
        });
    return fits ? fmt::format(
                      "The names of the state dict begin with '{}', a prefix of a wrapper: remove it in "
                      "place, for (auto& [name, tensor] "
                      ": tensors) name.erase(0, {})",
                      prefix, prefix.size())
                : "";
  }

  // PyTorch's batch norm counts its batches, for a momentum that Lockstep does not have.
  bool is_count_of_batches(const std::string& name) const {
    constexpr std::string_view kCount = "num_batches_tracked";
    return last_part(name) == kCount && batch_norms_.count(name.substr(0, name.size() - kCount.size())) != 0;
  }

  const std::set<std::string> convolutions_, batch_norms_;
  const ConvolutionWeights layout_;
  std::unordered_map<std::string, const Tensor*> given_;
  std::vector<NamedTensor> missing_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  // pairs of destination and source
  Differences found_;
};

IncompatibleKeys load(Module& module, const std::vector<NamedTensor>& entries, bool strict, ConvolutionWeights layout) {
  const NoGrad no_grad;
  IncompatibleKeys keys;
  Loading loading(module, layout);
  loading.take(entries);
  for (const auto& [name, own] : module.state_dict()) loading.match(name, own);
  loading.settle(entries, keys);
  loading.finish(module, strict);
  return keys;
}

}  // namespace

std::vector<NamedTensor> Module::state_dict() const {
  std::vector<NamedTensor> all = named_parameters();
  for (NamedTensor& buffer : named_buffers()) all.push_back(std::move(buffer));
  std::erase_if(all, [](const NamedTensor& entry) { return !entry.tensor.defined(); });
  return all;
}

IncompatibleKeys Module::load_state_dict(const std::vector<NamedTensor>& entries, const LoadStateDictOptions& options) {
  const bool is_told = options.convolution_weights != ConvolutionWeights::kAsTheFileSays;
  return load(*this, entries, options.strict, is_told ? options.convolution_weights : ConvolutionWeights::kOhwi);
}

IncompatibleKeys Module::load_state_dict(const FileTensors& entries, const LoadStateDictOptions& options) {
  ConvolutionWeights layout = options.convolution_weights;
  if (layout == ConvolutionWeights::kAsTheFileSays && entries.convolution_weights == "OHWI")
    layout = ConvolutionWeights::kOhwi;
  if (layout == ConvolutionWeights::kAsTheFileSays && entries.convolution_weights == "OIHW")
    layout = ConvolutionWeights::kOihw;
  return load(*this, entries, options.strict, layout);
}

}  // namespace lockstep::nn
