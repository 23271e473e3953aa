// Whether this program was built with a sanitizer, which makes it slow.
#pragma once

namespace lockstep::testing {

#if defined(__has_feature)  // Clang
inline constexpr bool kThreadSanitized = __has_feature(thread_sanitizer);
inline constexpr bool kSanitized = kThreadSanitized || __has_feature(address_sanitizer);
#else  // GCC
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif
#endif

}  // namespace lockstep::testing
