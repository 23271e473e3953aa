// Where one path of the collectives ends and the next begins, and the order of sums: one table for all ranks of a
// group.
//
// The defaults are what measured best on two and four ranks of a two-core machine (Zen 4). `bench/all_reduce --tune
// FILE` measures a machine and writes its table; LOCKSTEP_TUNING=FILE loads it. Rank 0 reads the file, the others get
// it from the store: ranks that disagreed about a path would wait for each other in vain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/comm/backend_context.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/reduce/reduce_kernels.h"

namespace lockstep::host {

struct Tuning {
  std::size_t line_bytes = kLinePayload;  // up to here a message travels in its rank's line
  std::size_t flat_bytes = 512;  // up to here in a slot that all ranks read whole; above, every rank reduces a slice
  std::size_t tile_bytes = kTileBytes;  // a step of the path by tiles
  ReduceOrder reduce_order = ReduceOrder::kRank;

  bool operator==(const Tuning&) const = default;
};

// Without a table. Two ranks with cores of their own: from 400 bytes slices are quicker in registered memory (512
// bytes: 0.53 us, read whole 0.59) and up to 1 KiB reading whole is in unregistered memory (0.60 against 0.91). Ranks
// that share cores give each other the core twice when they reduce slices: four on two cores take 10 us for 1 KiB then,
// and 4-6 read whole.
Tuning default_tuning(int ranks, int cores);

// Where a table was measured; all zero: by hand. Used elsewhere it is right, but perhaps not the fastest.
struct TuningOrigin {
  int cores = 0;
  int ranks = 0;

  bool operator==(const TuningOrigin&) const = default;
};
TuningOrigin tuning_origin_here(int ranks);

struct TuningTable {
  Tuning tuning;
  TuningOrigin made_on;
};

// The table as JSON and back. Keys may be missing (default_tuning() holds). Throws InvalidArgument that names `file`
// and key for an unknown key, a wrong type, a value out of range. Keys of earlier versions are passed over, and named
// in the log.
std::string to_json(const TuningTable& table);
TuningTable parse_tuning(const std::string& json, const std::string& file, const Tuning& defaults = {});

// Collective, through the context's store: the table of LOCKSTEP_TUNING and the order of LOCKSTEP_REDUCE_ORDER as rank
// 0 has them, or the defaults. A value that rank 0 cannot use is an InvalidArgument on all ranks; a rank whose own
// LOCKSTEP_REDUCE_ORDER asks for another order throws, too.
Tuning agree_on_tuning(const BackendContext& context);

}  // namespace lockstep::host
