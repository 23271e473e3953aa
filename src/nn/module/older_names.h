// Names that tensors had in files of earlier versions of Lockstep.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::nn {

// The last part of a dotted path, which is its tail after the last dot.
inline std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// The earlier name of a tensor that is called `name` today: batch norm's running_var was running_variance.
inline std::optional<std::string> older_name_of(const std::string& name) {
  if (last_part(name) != "running_var") return std::nullopt;
  return name + "iance";
}

}  // namespace lockstep::nn
