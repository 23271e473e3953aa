// The scope in which this thread builds modules. The code that opens scopes numbers them (train/strategy_scope.h).
#pragma once

#include <cstdint>

namespace lockstep::nn {

// Each module keeps the number that stands here when it is built; 0: no scope is open.
extern thread_local std::uint64_t build_scope;

}  // namespace lockstep::nn
