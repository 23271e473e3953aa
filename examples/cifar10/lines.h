// Log lines in the format of TensorFlow's tutorial.
#pragma once

#include <string>

// "2026-01-31 12:00:00.000000", local time, with microseconds.
std::string time_now();
