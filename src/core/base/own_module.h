// Libraries of Lockstep's own that a program loads when it needs them: each is built around a library that must not
// meet the program's.
#pragma once

#include <string>

namespace lockstep {

struct OwnModule {
  void* handle = nullptr;   // null: it cannot be loaded
  std::string file, error;  // the file that was found, "" if none was; why it cannot be loaded
};

// Looks for `name` beside the shared library or the program, in the build folder's `built_in`, and on the library path.
// Its own libraries come first for it, whatever the program has. Rejects a file of another user than the program's.
OwnModule load_own_module(const char* name, const char* built_in);

}  // namespace lockstep
