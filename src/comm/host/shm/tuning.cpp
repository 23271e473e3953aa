#include "src/comm/host/shm/tuning.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::host {

namespace {

using Json = nlohmann::ordered_json;

// -- names of the choices

const char* name_of(ReduceOrder order) { return order == ReduceOrder::kTree ? "tree" : "rank"; }

std::optional<ReduceOrder> reduce_order_of(const std::string& name) {
  for (const ReduceOrder order : {ReduceOrder::kRank, ReduceOrder::kTree})
    if (name == name_of(order)) return order;
  return std::nullopt;
}

// Takes the known keys out of an object; the remaining ones are unknown.
class Reader {
 public:
  Reader(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {
    if (!object_.is_object()) throw InvalidArgument("{}: expected a JSON object, got {}", where_, object_.dump());
  }

  void bytes(const char* key, std::size_t low, std::size_t high, std::size_t multiple, std::size_t& value) {
    const auto given = take(key);
    if (!given) return;
    if (!given->is_number_integer())
      throw InvalidArgument("{}: \"{}\" is {}; expected an integer", where_, key, given->dump());
    const auto number = given->is_number_unsigned() ? given->get<std::uint64_t>() : std::uint64_t{0};
    const bool is_negative = !given->is_number_unsigned() && given->get<std::int64_t>() < 0;
    if (is_negative || number < low || number > high || number % multiple != 0)
      throw InvalidArgument("{}: \"{}\" is {}; it must be in {}..{}{}", where_, key, given->dump(), low, high,
                            multiple == 1 ? "" : fmt::format(" and be a multiple of {}", multiple));
    value = number;
  }
  void number(const char* key, int& value) {
    auto wide = static_cast<std::size_t>(value);
    bytes(key, 0, 1 << 30, 1, wide);
    value = static_cast<int>(wide);
  }
  template <typename Choice>
  void choice(const char* key, std::optional<Choice> (*parse)(const std::string&), const char* names, Choice& value) {
    const auto given = take(key);
    if (!given) return;
    const auto parsed = given->is_string() ? parse(given->get<std::string>()) : std::nullopt;
    if (!parsed) throw InvalidArgument("{}: \"{}\" is {}; expected one of {}", where_, key, given->dump(), names);
    value = *parsed;
  }
  std::optional<Json> take(const char* key) {
    if (!object_.contains(key)) return std::nullopt;
    Json value = object_[key];
    object_.erase(key);
    return value;
  }
  void finish() const {
    if (!object_.empty()) throw InvalidArgument("{}: unknown key \"{}\"", where_, object_.begin().key());
  }

 private:
  Json object_;
  std::string where_;
};

std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw InvalidArgument("tuning: cannot read '{}', which {} names", file, env::kTuning);
  return text;
}

std::optional<ReduceOrder> order_from_environment() {
  const auto name = env::text(env::kReduceOrder);
  if (!name) return std::nullopt;
  const auto order = reduce_order_of(*name);
  if (!order) throw InvalidArgument("unknown order of sums '{}': {} is one of rank, tree", *name, env::kReduceOrder);
  return order;
}

Tuning load_here(int ranks) {
  const TuningOrigin here = tuning_origin_here(ranks);
  Tuning tuning = default_tuning(here.ranks, here.cores);
  if (const auto file = env::text(env::kTuning)) {
    const TuningTable table = parse_tuning(read_file(*file), *file, tuning);
    if (table.made_on != TuningOrigin{} && table.made_on != here)
      log::warn(
          "tuning: '{}' was made with {} ranks on {} cores, this group has {} on {}: it may not be the fastest; see "
          "bench/all_reduce --tune",
          *file, table.made_on.ranks, table.made_on.cores, here.ranks, here.cores);
    tuning = table.tuning;
  }
  tuning.reduce_order = order_from_environment().value_or(tuning.reduce_order);
  return tuning;
}

// Large messages in unregistered memory once used system calls to access the peers' memory, which measured slower.
void skip_earlier_keys(Reader& reader, const std::string& where) {
  std::string found;
  for (const char* key : {"plain_path", "vm_from_bytes", "vm_piece_bytes"})
    if (reader.take(key)) found += fmt::format("{}\"{}\"", found.empty() ? "" : ", ", key);
  if (!found.empty())
    log::warn(
        "{}: {} of an earlier version is ignored: large messages in unregistered memory always go through tiles; "
        "leave the keys out",
        where, found);
}

constexpr char kRefused = '!';  // in front of a reason; a table begins with a brace

}  // namespace

Tuning default_tuning(int ranks, int cores) {
  Tuning tuning;
  if (ranks > cores) tuning.flat_bytes = 4096;
  return tuning;
}

TuningOrigin tuning_origin_here(int ranks) {
  return {static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), ranks};  // the machine's: this rank may be bound to a few
}

std::string to_json(const TuningTable& table) {
  const Tuning& t = table.tuning;
  return Json{{"made_on", {{"cores", table.made_on.cores}, {"ranks", table.made_on.ranks}}},
              {"line_bytes", t.line_bytes},
              {"flat_bytes", t.flat_bytes},
              {"tile_bytes", t.tile_bytes},
              {"reduce_order", name_of(t.reduce_order)}}
      .dump(2);
}

TuningTable parse_tuning(const std::string& json, const std::string& file, const Tuning& defaults) {
  const std::string where = fmt::format("tuning: '{}'", file);
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw InvalidArgument("{} is not JSON", where);
  TuningTable table{defaults, {}};
  Tuning& t = table.tuning;
  Reader reader(parsed, where);
  reader.bytes("line_bytes", 0, kHeaderPayload, 1, t.line_bytes);
  reader.bytes("flat_bytes", 0, kSlotBytes, 1, t.flat_bytes);
  reader.bytes("tile_bytes", 64 * 1024, kTileBytes, 4096, t.tile_bytes);
  skip_earlier_keys(reader, where);
  reader.choice("reduce_order", reduce_order_of, "rank, tree", t.reduce_order);
  if (const auto made_on = reader.take("made_on")) {
    Reader origin(*made_on, where + ": \"made_on\"");
    origin.number("cores", table.made_on.cores);
    origin.number("ranks", table.made_on.ranks);
    origin.finish();
  }
  reader.finish();
  return table;
}

Tuning agree_on_tuning(const BackendContext& context) {
  if (context.place.world_size == 1) return load_here(1);
  if (context.place.rank == 0) {
    try {
      const Tuning tuning = load_here(context.place.world_size);
      context.store->set("tuning", to_json({tuning, {}}));
      return tuning;
    } catch (const InvalidArgument& error) {
      context.store->set("tuning", kRefused + std::string(error.what()));  // the others wait for a table
      throw;
    }
  }
  const std::string text = await_value(context, 0, "tuning");
  if (!text.empty() && text[0] == kRefused) throw InvalidArgument("rank 0: {}", text.substr(1));
  const Tuning tuning = parse_tuning(text, "the table of rank 0").tuning;
  const auto wanted = order_from_environment();
  if (wanted && *wanted != tuning.reduce_order)
    throw InvalidArgument("{} is '{}' on rank {} and rank 0 sums in {} order: set the same value on all ranks",
                          env::kReduceOrder, name_of(*wanted), context.place.rank, name_of(tuning.reduce_order));
  return tuning;
}

}  // namespace lockstep::host
