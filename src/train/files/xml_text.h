// Escapes text for XML, including SVG.
#pragma once

#include <string>

namespace lockstep::train {

// Escapes <, >, & and quotes. Bytes that are not UTF-8 and characters that XML 1.0 forbids become '?'.
std::string xml_text(const std::string& text);

}  // namespace lockstep::train
