// In which strategy's scope this thread builds modules.
#pragma once

#include <cstdint>

namespace lockstep::nn {

// The number of the scope, by which train/strategy_scope.h tells modules apart; 0: none.
extern thread_local std::uint64_t build_scope;

}  // namespace lockstep::nn
