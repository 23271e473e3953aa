#pragma once

#include <string>

namespace lockstep::train {

inline constexpr const char* kOfValidation = "val_";  // begins the names of the validation's values
inline bool is_of_validation(const std::string& name) { return name.rfind(kOfValidation, 0) == 0; }
// "loss" of "val_loss", and of "loss".
inline std::string bare_name(const std::string& name) { return is_of_validation(name) ? name.substr(4) : name; }

}  // namespace lockstep::train
