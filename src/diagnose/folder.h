// The flight records that lie in a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"

namespace lockstep::diagnose {

struct Records {
  std::vector<FlightDump> dumps;     // of the newest job, by rank
  std::vector<std::string> ignored;  // sentences: a file that cannot be read, or that is another job's
};

// Throws FileError with the remedy: there is no such folder, or no record in it that can be read.
Records read_folder(const std::filesystem::path& folder);

// Keeps the job of the record that was written last. Pure.
Records sort_out(std::vector<FlightDump> dumps);

}  // namespace lockstep::diagnose
