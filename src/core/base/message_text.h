// Helpers for the text of messages.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Used instead of fmt::join, for whose parser GCC 12 warns about a write past the end.
std::string joined(std::span<const std::string> texts, std::string_view between);

// "'a', 'b' and 7 more": at most 20 of the names.
std::string quoted(const std::vector<std::string>& names);

// The exception's text, or a sentence if it has none or is not a std::exception. Never empty. `exception` must not be
// null.
std::string exception_text(const std::exception_ptr& exception);

}  // namespace lockstep
