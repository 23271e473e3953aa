// Reads the flight records in a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"

namespace lockstep::diagnose {

struct Records {
  std::vector<FlightDump> dumps;     // of the newest job, by rank
  std::vector<std::string> ignored;  // messages about files that are unreadable or belong to another job
};

// Throws FileError with the remedy if the folder does not exist or has no readable record.
Records read_folder(const std::filesystem::path& folder);

// Keeps the records of the job whose record was written last. Pure.
Records sort_out(std::vector<FlightDump> dumps);

}  // namespace lockstep::diagnose
