// Formats findings as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "src/diagnose/diagnose.h"
#include "src/diagnose/record_folder.h"

namespace lockstep::diagnose {

std::string text_report(const Records& records, const std::vector<Finding>& findings);
std::string json_report(const Records& records, const std::vector<Finding>& findings);

}  // namespace lockstep::diagnose
