// Words for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Not fmt::join, whose parser GCC 12 compiles with a warning about a write past the end.
std::string joined(std::span<const std::string> texts, std::string_view between);

}  // namespace lockstep
