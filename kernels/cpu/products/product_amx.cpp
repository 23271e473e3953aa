// A block of panels of one operand stays in the second-level cache, while the panels of the other are streamed. Between
// the products of tiles, the next streamed panel is packed and the results of the previous one are stored. The longer
// side is streamed.
#include "kernels/cpu/products/product_amx.h"

#include <algorithm>

#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/products/amx_panels.h"
#include "kernels/cpu/products/amx_results.h"
#include "kernels/cpu/products/amx_tiles.h"

namespace lockstep::amx {

namespace {

// Number of steps for which panels are multiplied at once; between these pieces, sums are stored in memory.
constexpr Index kMostSteps = 8, kPieceInner = kMostSteps * kStep, kPanelBytes = kMostSteps * kStepBytes;
// Size of the block that stays in the cache: bytes, and elements of the sums. The latter are fewer if the streamed
// lines are adjacent in memory, because their elements are then far apart, and the processor's page tables can follow
// about 256 rows.
constexpr Index kKeptBytes = Index{3} << 19, kLongest = 1024, kLongestAcross = 256;

// Distributes `items` evenly over `slots`.
class EvenSchedule {
 public:
  EvenSchedule(Index items, Index slots) : items_(items), slots_(slots) {}

  // The number of items for the next slot.
  Index next() {
    Index due = 0;
    for (credit_ += items_; credit_ >= slots_; credit_ -= slots_) ++due;
    return due;
  }

 private:
  Index items_, slots_, credit_ = 0;
};

// The work between the products of tiles of a pair of panels: packing and storing.
class InterleavedWork {
 public:
  InterleavedWork(PanelPacker& packer, ResultWriter& writer, Index pairs_left, Index slots)
      : packer_(packer),
        writer_(writer),
        rows_(in_units(packer.rows_left(), pairs_left), slots),
        parts_(in_units(writer.parts_left(), pairs_left), slots) {}

  void operator()() {
    if (const Index rows = rows_.next(); rows > 0) packer_.pack_rows(rows);
    if (const Index parts = parts_.next(); parts > 0) writer_.store_parts(parts);
  }

 private:
  PanelPacker& packer_;
  ResultWriter& writer_;
  EvenSchedule rows_, parts_;
};

class Multiplication {
 public:
  Multiplication(const Product& p, bool streams_rows)
      : p_(p),
        streams_rows_(streams_rows),
        streamed_(streams_rows_ ? rows_of(p) : columns_of(p)),
        kept_(streams_rows_ ? columns_of(p) : rows_of(p)),
        side_(streamed_.is_along_sums() ? Side::kA : Side::kB),
        longest_(std::min(in_units(p.inner, kStep) * kStep, side_ == Side::kA ? kLongest : kLongestAcross)),
        widest_(even_share(in_units(kept_.count, kLinesOfPanel), kKeptBytes / (longest_ / kStep * kStepBytes))),
        memory_(cpu_device().allocate(kept_bytes() + 2 * kPanelBytes + 2 * sums_bytes())) {}

  void run() {
    const Index most = widest_ * kLinesOfPanel;
    for (Index first = 0; first < kept_.count; first += most)
      for (Index begin = 0; begin < p_.inner; begin += longest_) {
        block_ = {first, std::min(kept_.count, first + most), begin, std::min(p_.inner, begin + longest_)};
        keep_block();
        multiply_block();
      }
  }

 private:
  // Lines [first, last) that stay in the cache, over elements [begin, end) of the sums.
  struct Block {
    Index first = 0, last = 0, begin = 0, end = 0;

    Index panels() const { return in_units(last - first, kLinesOfPanel); }
  };

  static Lines rows_of(const Product& p) { return {p.a.floats(), p.rows, p.a.row_step, p.a.column_step}; }
  static Lines columns_of(const Product& p) { return {p.b.floats(), p.columns, p.b.column_step, p.b.row_step}; }

  // Divides `count` into the fewest equal parts of at most `most` and returns their size.
  static Index even_share(Index count, Index most) { return in_units(count, in_units(count, most)); }

  Index kept_bytes() const { return widest_ * (longest_ / kStep) * kStepBytes; }
  Index sums_bytes() const { return widest_ * kSumsOfPanels * static_cast<Index>(sizeof(float)); }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(memory_.data()); }
  // Panels are ordered by pieces of the sums, and within a piece by lines.
  std::byte* kept_panel(Index n, const Range& range) const {
    return bytes() + ((range.begin - block_.begin) / kStep * block_.panels() + n * range.steps()) * kStepBytes;
  }
  std::byte* streamed_panel(Index number) const { return bytes() + kept_bytes() + number % 2 * kPanelBytes; }
  float* sums_of(Index line, Index n) const {
    std::byte* const sums = bytes() + kept_bytes() + 2 * kPanelBytes + line / kLinesOfPanel % 2 * sums_bytes();
    return reinterpret_cast<float*>(sums) + n * kSumsOfPanels;
  }

  Range piece(Index line, Index begin) const { return {line, begin, std::min(block_.end, begin + kPieceInner)}; }
  // The range that is multiplied after `range`; after the last one, its line is beyond the end.
  Range after(const Range& range) const {
    return range.end < block_.end ? piece(range.line, range.end) : piece(range.line + kLinesOfPanel, block_.begin);
  }
  // While one panel is packed, the next is prefetched.
  PanelPacker packer(const Range& range, Index number) const {
    if (range.line >= streamed_.count) return {};
    const Range next = after(range);
    const Index later =
        (next.line - range.line) * streamed_.line_step + (next.begin - range.begin) * streamed_.inner_step;
    return {streamed_, range, later, streamed_panel(number)};
  }

  void keep_block() const {
    const Side side = side_ == Side::kA ? Side::kB : Side::kA;
    for (Index begin = block_.begin; begin < block_.end; begin += kPieceInner)
      for (Index n = 0; n < block_.panels(); ++n) {
        const Range range = piece(block_.first + n * kLinesOfPanel, begin);
        pack_panel(kept_, side, range, kept_panel(n, range));
      }
  }

  LOCKSTEP_TARGET_AMX void multiply_block() {
    Index number = 0;
    Range range = piece(0, block_.begin);
    PanelPacker packer_now = packer(range, number);
    packer_now.pack_rows(packer_now.rows_left());
    ResultWriter writer;
    for (; range.line < streamed_.count; range = after(range), ++number) {
      PanelPacker next = packer(after(range), number + 1);
      multiply_panel(range, streamed_panel(number), next, writer);
      if (range.end == block_.end) writer = ResultWriter(results_of(range.line));
    }
    writer.store_parts(writer.parts_left());
  }

  // Multiplies one panel by all panels in the cache; meanwhile the next is packed, and the results of earlier lines are
  // stored.
  LOCKSTEP_TARGET_AMX void multiply_panel(const Range& range, const std::byte* panel, PanelPacker& next,
                                          ResultWriter& before) {
    const Index count = block_.panels(), slots = range.steps() * kSlotsOfStep;
    const bool is_a = side_ == Side::kA, accumulate = range.begin != block_.begin;
    for (Index n = 0; n < count; ++n) {
      InterleavedWork work(next, before, count - n, slots);
      const std::byte* const kept = kept_panel(n, range);
      multiply_panels(range.steps(), is_a ? panel : kept, is_a ? kept : panel, accumulate, sums_of(range.line, n),
                      work);
    }
  }

  // The results of the streamed lines from `line` on.
  Results results_of(Index line) const {
    const Index lines = std::min(kLinesOfPanel, streamed_.count - line), kept_lines = block_.last - block_.first;
    const Index row = streams_rows_ ? line : block_.first, column = streams_rows_ ? block_.first : line;
    const bool is_first = block_.begin == 0, is_last = block_.end == p_.inner;
    return {.sums = sums_of(line, 0),
            .panels = block_.panels(),
            .by_columns = !streams_rows_,
            .turned = streams_rows_ != (side_ == Side::kA),
            .rows = streams_rows_ ? lines : kept_lines,
            .columns = streams_rows_ ? kept_lines : lines,
            .c = p_.c + row * p_.c_step + column,
            .c_step = p_.c_step,
            .accumulate = p_.accumulate || !is_first,
            .relu = p_.relu && is_last,
            .start = is_first && p_.bias != nullptr ? p_.bias + column : nullptr};
  }

  const Product& p_;
  const bool streams_rows_;
  const Lines streamed_, kept_;
  const Side side_;               // of the streamed operand
  const Index longest_, widest_;  // of a block: elements of the sums, and panels
  const Buffer memory_;
  Block block_;
};

}  // namespace

bool suits(Index rows, Index columns, Index inner) {
  constexpr Index kFewest = 64, kWorthwhile = Index{1} << 20;
  return cpu_isa() >= Isa::kAmx && std::min({rows, columns, inner}) >= kFewest && rows * columns * inner >= kWorthwhile;
}

bool streams_rows(const Product& p) { return p.rows >= p.columns; }

namespace {

bool has_contiguous_lines(const MatrixOperand& operand) { return operand.row_step == 1 || operand.column_step == 1; }

}  // namespace

void multiply_part(const Product& p, bool rows) {
  LOCKSTEP_CHECK(cpu_isa() >= Isa::kAmx, "a product on AMX, which this process cannot use");
  LOCKSTEP_CHECK(std::min({p.rows, p.columns, p.inner}) > 0 && has_contiguous_lines(p.a) && has_contiguous_lines(p.b),
                 "a product of {} x {} x {}, operands with steps {}, {} and {}, {}", p.rows, p.columns, p.inner,
                 p.a.row_step, p.a.column_step, p.b.row_step, p.b.column_step);
  const Tiles tiles;
  Multiplication(p, rows).run();
}

void multiply_alone(const Product& p) { multiply_part(p, streams_rows(p)); }

// Each thread packs the entire cached operand, and a part of the streamed one. Which side is streamed decides how sums
// are cut, so that is decided by the complete product.
void multiply(const Product& p) {
  constexpr Index kFewestPanels = 4, kWorthwhile = 4'000'000;
  const bool by_rows = streams_rows(p);
  const Index length = by_rows ? p.rows : p.columns, panels = in_units(length, kLinesOfPanel);
  const Index most = std::min(panels / kFewestPanels, p.rows * p.columns * p.inner / kWorthwhile);
  const Index parts = std::clamp<Index>(most, 1, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Index begin = panels * part / parts * kLinesOfPanel,
                end = std::min(length, panels * (part + 1) / parts * kLinesOfPanel);
    Product own = p;
    if (by_rows) {
      own.rows = end - begin, own.a = p.a.from(begin, 0), own.c += begin * p.c_step;
    } else {
      own.columns = end - begin, own.b = p.b.from(0, begin), own.c += begin;
      if (p.bias != nullptr) own.bias += begin;
    }
    multiply_part(own, by_rows);
  });
}

}  // namespace lockstep::amx

#else

namespace lockstep::amx {

bool suits(Index, Index, Index) { return false; }
bool streams_rows(const Product&) { return true; }
void multiply_part(const Product&, bool) { LOCKSTEP_CHECK(false, "no AMX here"); }
void multiply_alone(const Product&) { LOCKSTEP_CHECK(false, "no AMX here"); }
void multiply(const Product&) { LOCKSTEP_CHECK(false, "no AMX here"); }

}  // namespace lockstep::amx

#endif
