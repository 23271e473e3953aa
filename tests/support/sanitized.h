// Whether this program was built with a sanitizer, which makes it slow.
#pragma once

namespace lockstep::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // GCC
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);  // Clang
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace lockstep::testing
