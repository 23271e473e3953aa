// The version of these headers, and a check that the library has the same one: each program that includes them refers
// to the symbol below, which only the library of that version defines. With another version the linker, or the loader
// when the program starts, reports it as missing.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "Lockstep's headers are C++20: compile with -std=c++20 or newer"
#endif

#define LOCKSTEP_VERSION "0.2.0"

#pragma GCC visibility push(default)
// Versions below 1.0 with different second numbers have different interfaces.
extern "C" const char lockstep_headers_0_2_need_library_0_2__install_both_of_one_version_and_compile_again;
#pragma GCC visibility pop

namespace lockstep::internal {
[[gnu::used, gnu::visibility("hidden")]] inline const char* const kLibraryOfSameVersion =
    &lockstep_headers_0_2_need_library_0_2__install_both_of_one_version_and_compile_again;
}  // namespace lockstep::internal
