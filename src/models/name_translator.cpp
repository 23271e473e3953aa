#include "src/models/name_translator.h"

#include "lockstep/autograd/shapes.h"
#include "lockstep/core/error.h"

namespace lockstep::models {

namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw InvalidArgument("NameMapping: '{}' is not a regular expression: {}", pattern, error.what());
  }
}

[[noreturn]] void refuse_shape(const Tensor& weight, const std::string& name, const char* expected) {
  throw FileError("tensor '{}' has the shape {}, expected {}", name, weight.shape().text(), expected);
}

void check_image(const Tensor& weight, const WeightLayout& layout, const std::string& name) {
  const auto [channels, height, width] = layout.image;
  if (weight.shape().dims() != 2 || weight.shape()[1] != channels * height * width)
    refuse_shape(
        weight, name,
        fmt::format("(out, {}) for images of {} channels, {} x {}", channels * height * width, channels, height, width)
            .c_str());
}

}  // namespace

NameTranslator::NameTranslator(const NameMapping& mapping) {
  for (const NameRule& rule : mapping.rules) {
    Rule& added = rules_.emplace_back();
    added.in_file = compiled(rule.in_file);
    if (!rule.written_pattern.empty()) added.in_module = compiled(rule.written_pattern);
    added.texts = rule;
  }
}

// Matching recurses for each character.
constexpr std::size_t kLongestName = 1000;

TranslatedName NameTranslator::to_module(const std::string& name_in_file) const {
  if (name_in_file.size() > kLongestName)
    throw FileError("a tensor's name has {} bytes, expected at most {}: '{}...'", name_in_file.size(), kLongestName,
                    name_in_file.substr(0, 60));
  std::smatch match;
  for (const Rule& rule : rules_)
    if (std::regex_match(name_in_file, match, rule.in_file))
      return {rule.texts.in_module.empty() ? "" : match.format(rule.texts.in_module), rule.texts.layout};
  return {name_in_file};
}

TranslatedName NameTranslator::to_file(const std::string& name_in_module) const {
  std::smatch match;
  for (const Rule& rule : rules_)
    if (rule.in_module && std::regex_match(name_in_module, match, *rule.in_module))
      return {match.format(rule.texts.written_name), rule.texts.layout};
  return {name_in_module};
}

Tensor in_module_layout(const Tensor& weight, const WeightLayout& layout, const std::string& name) {
  if (layout.kind == WeightLayout::kSame) return weight;
  if (layout.kind == WeightLayout::kTransposed) {
    if (weight.shape().dims() != 2) refuse_shape(weight, name, "two dimensions, (in, out)");
    return transpose(weight, 0, 1);
  }
  check_image(weight, layout, name);
  const auto [channels, height, width] = layout.image;
  const Tensor images = reshape(weight, {weight.shape()[0], channels, height, width});
  return reshape(permute(images, {0, 2, 3, 1}), weight.shape());
}

Tensor in_file_layout(const Tensor& weight, const WeightLayout& layout, const std::string& name) {
  if (layout.kind != WeightLayout::kChannelsFirst) return in_module_layout(weight, layout, name);
  check_image(weight, layout, name);
  const auto [channels, height, width] = layout.image;
  const Tensor images = reshape(weight, {weight.shape()[0], height, width, channels});
  return reshape(permute(images, {0, 3, 1, 2}), weight.shape());
}

NameMapping gpt2_names() {
  const std::string transposed = R"((h\.\d+\.(?:attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight))";
  return {.model_type = "gpt2",
          .rules = {{.in_file = R"((?:transformer\.)?h\.\d+\.attn\.(?:masked_)?bias)"},  // causal masks
                    {.in_file = R"(lm_head\.weight)"},                                   // shares wte's memory
                    {.in_file = R"((?:transformer\.)?)" + transposed,
                     .in_module = "$1",
                     .layout = {WeightLayout::kTransposed},
                     .written_pattern = transposed,
                     .written_name = "transformer.$1"},
                    {.in_file = R"((?:transformer\.)?(.*))",
                     .in_module = "$1",
                     .written_pattern = "(.*)",
                     .written_name = "transformer.$1"}}};
}

NameMapping bert_names() {
  return {.model_type = "bert",
          .rules = {{.in_file = R"((?:bert\.)?embeddings\.position_ids)"},
                    {.in_file = R"(cls\..*)"},  // the heads of pretraining
                    {.in_file = R"((?:bert\.)?(.*LayerNorm)\.gamma)", .in_module = "$1.weight"},
                    {.in_file = R"((?:bert\.)?(.*LayerNorm)\.beta)", .in_module = "$1.bias"},
                    {.in_file = R"((?:bert\.)?(.*))", .in_module = "$1"}}};
}

// model_type is checked by LlamaConfig::read(), because three families share these names.
NameMapping llama_names() {
  return {.rules = {{.in_file = R"((?:model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq)"},
                    {.in_file = R"(((?:embed_tokens|layers|norm)\..*))", .in_module = "model.$1"}}};
}

NameMapping torchvision_resnet_names() { return {.rules = {{.in_file = R"(.*\.num_batches_tracked)"}}}; }

}  // namespace lockstep::models
