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
  int nodes = 1;                   // that the ranks act as if they ran on
  std::vector<std::size_t> sizes;  // bytes, rising
  std::string backend, transport;
  bool json = false;
  bool overlap = false;
  std::vector<std::string> compare;       // the peers; empty: no comparison
  std::string json_file, plot_file;       // "": none
  std::string tune_file;                  // "": nothing is tuned
  std::vector<std::string> result_files;  // to be drawn; not empty: nothing is measured
};

// In all_reduce --op is the reduction; in collective it names the collective and --redop the reduction. Ranks: the
// launcher's, when one has made this process a rank. Throws InvalidArgument that names the flag; prints and exits for
// --help.
Settings parse_settings(Program program, int argc, char** argv);

}  // namespace lockstep::bench
