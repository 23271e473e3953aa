// Words for messages.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Not fmt::join, whose parser GCC 12 compiles with a warning about a write past the end.
std::string joined(std::span<const std::string> texts, std::string_view between);

// What it says, or that it has no text, or that it is no std::exception. Never empty. `exception` is not null.
std::string exception_text(const std::exception_ptr& exception);

}  // namespace lockstep
