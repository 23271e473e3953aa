// torchrun's flags that lockrun does not support, and what to write instead.
#pragma once

#include <optional>
#include <string>

namespace lockstep::launcher {

// Advice about `flag` ("--rdzv-endpoint", "-m": with hyphens, without a value); nullopt if it is not one of them. Pure.
std::optional<std::string> advice_on_torchruns_flag(const std::string& flag);

}  // namespace lockstep::launcher
