// Text for XML, of which SVG is a kind.
#pragma once

#include <string>

namespace lockstep {

// Fit for XML: <, >, &, quotes escaped; what is no UTF-8 or may not occur becomes '?'.
std::string xml_text(const std::string& text);

}  // namespace lockstep
