#include "src/core/text.h"

namespace lockstep {

std::string joined(std::span<const std::string> texts, std::string_view between) {
  std::string all;
  for (const std::string& text : texts) {
    if (&text != texts.data()) all += between;
    all += text;
  }
  return all;
}

}  // namespace lockstep
