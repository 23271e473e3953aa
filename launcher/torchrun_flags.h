// torchrun's flags that lockrun does not take, and what to write instead.
#pragma once

#include <optional>
#include <string>

namespace lockstep::launcher {

// Of --max-restarts with another number than 0.
inline constexpr const char* kNoRestarts =
    "lockrun starts nothing again: leave it out, save checkpoints, and let a loop around lockrun resume from the last "
    "one";

// A sentence about `flag` ("--rdzv-endpoint", "-m": with hyphens, without a value), or none: it is not one of them.
// Pure.
std::optional<std::string> advice_on_torchruns_flag(const std::string& flag);

}  // namespace lockstep::launcher
