#pragma once

#include <string>

namespace lockstep::train {

inline constexpr const char* kOfValidation = "val_";  // the prefix of validation values
inline bool is_of_validation(const std::string& name) { return name.rfind(kOfValidation, 0) == 0; }
// "loss" for "val_loss" and for "loss".
inline std::string bare_name(const std::string& name) { return is_of_validation(name) ? name.substr(4) : name; }

}  // namespace lockstep::train
