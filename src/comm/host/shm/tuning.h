// The message sizes at which a collective changes its path, and the order of summation: one table for all ranks of a
// group.
//
// The defaults measured best on two and four ranks of a two-core machine (Zen 4). `bench/all_reduce --tune FILE`
// measures a machine and writes its table; LOCKSTEP_TUNING=FILE loads it. Rank 0 reads the file and the others get it
// from the store: ranks that disagree about a path would wait for each other forever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/comm/backend_context.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/reduce/reduce_kernels.h"

namespace lockstep::host {

struct Tuning {
  std::size_t line_bytes = kHeaderPayload;  // up to this size a message travels in its rank's header
  // Up to this size in a slot that all ranks read in full; above, every rank reduces a slice.
  std::size_t flat_bytes = 512;
  std::size_t tile_bytes = kTileBytes;  // step of the path through tiles
  ReduceOrder reduce_order = ReduceOrder::kRank;

  bool operator==(const Tuning&) const = default;
};

// The table without a file. Two ranks on their own cores: in registered memory slices are faster from 400 bytes on (512
// bytes: 0.53 us, 0.59 if read in full); in unregistered memory reading in full is faster up to 1 KiB (0.60 us, slices
// 0.91). Ranks that share cores switch twice when they reduce slices: four on two cores then take 10 us for 1 KiB, and
// 4-6 us if they read in full.
Tuning default_tuning(int ranks, int cores);

// Where a table was measured; all zero: written by hand. A table is correct elsewhere, but perhaps not the fastest.
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

// Conversion of the table to JSON and back. Missing keys keep the values of default_tuning(). Throws InvalidArgument
// with `file` and key for an unknown key, a wrong type, or a value out of range. Keys of earlier versions are ignored,
// and named in the log.
std::string to_json(const TuningTable& table);
TuningTable parse_tuning(const std::string& json, const std::string& file, const Tuning& defaults = {});

// Collective, through the context's store: the table of LOCKSTEP_TUNING and the order of LOCKSTEP_REDUCE_ORDER on rank
// 0, or the defaults. If rank 0 cannot use a value, all ranks throw InvalidArgument; so does a rank whose own
// LOCKSTEP_REDUCE_ORDER differs.
Tuning agree_on_tuning(const BackendContext& context);

}  // namespace lockstep::host
