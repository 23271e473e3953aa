// The activation that a convolution or linear layer can apply to its result before it writes it to memory.
#pragma once

#pragma GCC visibility push(default)
namespace lockstep {

enum class Activation { kNone, kReLU };

}  // namespace lockstep
#pragma GCC visibility pop
