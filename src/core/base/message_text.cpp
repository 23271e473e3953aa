#include "src/core/base/message_text.h"

namespace lockstep {

std::string joined(std::span<const std::string> texts, std::string_view between) {
  std::string all;
  for (const std::string& text : texts) {
    if (&text != texts.data()) all += between;
    all += text;
  }
  return all;
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
