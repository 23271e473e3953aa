// How much a matrix product and an asynchronous all-reduce slow each other down when they run together.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/lib/measure.h"

namespace lockstep::bench {

// Microseconds: medians over the rounds, of the slowest rank's time.
struct Overlap {
  std::size_t bytes = 0;
  std::int64_t rows = 0, features = 0;  // the product: (rows, features) x (features, features)
  std::size_t rounds = 0;
  double product_alone = 0, all_reduce_alone = 0;
  double product_overlapped = 0, all_reduce_overlapped = 0;  // time until each ended when both ran
  double together = 0;                                       // time until both had ended
};

// Collective. The product is sized to take as long as the all-reduce. It computes on one thread, in pieces, and checks
// after each piece whether the all-reduce is done; this finds its end without a separate thread. All ranks get the same
// result.
Overlap measure_overlap(std::shared_ptr<ProcessGroup> group, const MeasureOptions& options, std::size_t bytes);

void print_overlap(const Overlap& overlap);
nlohmann::ordered_json overlap_as_json(const Overlap& overlap);

}  // namespace lockstep::bench
