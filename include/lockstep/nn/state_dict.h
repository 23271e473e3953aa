// What Module::load_state_dict() takes and returns.
#pragma once

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct LoadStateDictOptions {
  bool strict = true;  // every name of the module must be there, and no other
};

struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     // of the module, not in the state dict: left as they were
  std::vector<std::string> unexpected_keys;  // of the state dict, not in the module: ignored
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
