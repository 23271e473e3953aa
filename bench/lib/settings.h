// The flags of bench/all_reduce and bench/collective.
#pragma once

#include <string>
#include <vector>

#include "bench/lib/measure.h"

namespace lockstep::bench {

enum class Program { kAllReduce, kCollective };

struct Settings {
  std::string program;  // "all_reduce"
  MeasureOptions measure;
  int ranks = 2;
  int nodes = 1;                   // the number of nodes to simulate
  std::vector<std::size_t> sizes;  // bytes, rising
  std::string backend, transport;
  bool json = false;
  bool overlap = false;
  std::vector<std::string> compare;       // the peers; empty: no comparison
  std::string json_file, plot_file;       // empty: do not write
  std::string tune_file;                  // empty: do not tune
  std::vector<std::string> result_files;  // files to plot; if not empty, nothing is measured
};

// In all_reduce --op is the reduction; in collective --op names the collective and --redop the reduction. The number of
// ranks is the launcher's, if one has started this process. Throws InvalidArgument that names the flag; for --help,
// prints it and exits.
Settings parse_settings(Program program, int argc, char** argv);

}  // namespace lockstep::bench
