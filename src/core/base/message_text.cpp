#include "src/core/base/message_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

std::string joined(std::span<const std::string> texts, std::string_view between) {
  std::string all;
  for (const std::string& text : texts) {
    if (&text != texts.data()) all += between;
    all += text;
  }
  return all;
}

std::string quoted(const std::vector<std::string>& names) {
  constexpr std::size_t kNamesInMessages = 20;
  const std::size_t shown = std::min(names.size(), kNamesInMessages);
  std::string text = fmt::format("'{}'", joined(std::span(names).first(shown), "', '"));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string exception_text(const std::exception_ptr& exception) {
  std::string text;
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
  return text.empty() ? "an exception without a text" : text;
}

}  // namespace lockstep
