#include "src/data/tokenizers/post_processor.h"

#include "src/data/tokenizers/file_component.h"

namespace lockstep::data {

namespace {

// ["[SEP]", 102]
TemplatePart special_part(const FileComponent& component, const char* key, std::int64_t type_id) {
  const nlohmann::json& pair = component.part(key).value();
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer())
    component.refuse(fmt::format("'{}' is {}; expected a token and its id", key, pair.dump()));
  return {.ids = {pair[1].get<std::int64_t>()}, .type_id = type_id};
}

PostProcessor bert(const FileComponent& component) {
  const TemplatePart begin = special_part(component, "cls", 0);
  const TemplatePart end = special_part(component, "sep", 0), second_end = special_part(component, "sep", 1);
  return {.single = {begin, {.text = 0}, end},
          .pair = {begin, {.text = 0}, end, {.text = 1, .type_id = 1}, second_end}};
}

PostProcessor roberta(const FileComponent& component) {
  const TemplatePart begin = special_part(component, "cls", 0), end = special_part(component, "sep", 0);
  return {.single = {begin, {.text = 0}, end}, .pair = {begin, {.text = 0}, end, end, {.text = 1}, end}};
}

std::vector<std::int64_t> template_ids(const FileComponent& component, const std::string& name) {
  const FileComponent tokens = component.part("special_tokens");
  if (!tokens.has(name.c_str())) tokens.refuse(fmt::format("'{}', which the template names, is missing", name));
  const FileComponent token = tokens.part(name.c_str());
  std::vector<std::int64_t> ids;
  for (const FileComponent& id : token.list("ids")) {
    if (!id.value().is_number_integer()) id.refuse("is not an integer");
    ids.push_back(id.value().get<std::int64_t>());
  }
  return ids;
}

std::vector<TemplatePart> template_parts(const FileComponent& component, const char* key) {
  std::vector<TemplatePart> parts;
  for (const FileComponent& each : component.list(key)) {
    const bool is_text = each.has("Sequence");
    if (!is_text && !each.has("SpecialToken")) each.refuse("expected a Sequence or a SpecialToken");
    const FileComponent part = each.part(is_text ? "Sequence" : "SpecialToken");
    const std::int64_t type_id = part.integer("type_id", 0);
    if (is_text)
      parts.push_back({.text = part.choice<int>("id", {{"A", 0}, {"B", 1}}), .type_id = type_id});
    else
      parts.push_back({.ids = template_ids(component, part.text("id")), .type_id = type_id});
  }
  return parts;
}

// Returns whether the component has a template.
bool take_template(PostProcessor& processor, const FileComponent& component) {
  const std::string kind = component.kind();
  if (kind == "ByteLevel") return false;
  if (kind == "BertProcessing") {
    processor = bert(component);
  } else if (kind == "RobertaProcessing") {
    processor = roberta(component);
  } else if (kind == "TemplateProcessing") {
    processor = {.single = template_parts(component, "single"), .pair = template_parts(component, "pair")};
  } else if (kind == "Sequence") {
    bool has_template = false;
    for (const FileComponent& each : component.list("processors"))
      if (take_template(processor, each) && std::exchange(has_template, true))
        each.refuse("is the second with a template; one in a Sequence is supported");
    return has_template;
  } else {
    component.refuse_kind("BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing");
  }
  return true;
}

}  // namespace

PostProcessor post_processor_of(const FileComponent& component) {
  PostProcessor processor;
  if (!component.is_null()) take_template(processor, component);
  return processor;
}

}  // namespace lockstep::data
