// What convolutions and linear layers can do to their result on its way to memory.
#pragma once

#pragma GCC visibility push(default)
namespace lockstep {

enum class Activation { kNone, kReLU };

}  // namespace lockstep
#pragma GCC visibility pop
