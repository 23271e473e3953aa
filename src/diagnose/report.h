// Findings as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "src/diagnose/diagnose.h"
#include "src/diagnose/folder.h"

namespace lockstep::diagnose {

std::string text_report(const Records& records, const std::vector<Finding>& findings);
std::string json_report(const Records& records, const std::vector<Finding>& findings);

}  // namespace lockstep::diagnose
