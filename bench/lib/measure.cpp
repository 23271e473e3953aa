#include "bench/lib/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <string>

#include "bench/lib/bench_common.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t kWarmUp = 3;
constexpr int kRepeats = 3;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Steady clocks count from the machine's start, so clocks of processes on one machine can be compared.
bool on_one_machine(ProcessGroup& group) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const auto boots = group.all_gather_text(boot);
  return !boot.empty() &&
         std::all_of(boots.begin(), boots.end(), [&](const std::string& other) { return other == boot; });
}

double median_us(const std::vector<double>& ns) { return quantile(ns, 0.5) / 1e3; }

}  // namespace

std::size_t rounds_for(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{64} << 20) / std::max<std::size_t>(bytes, 4096), 7, 2000);
}

Measurement::Measurement(std::shared_ptr<ProcessGroup> group, const MeasureOptions& options, std::size_t largest)
    : group_(std::move(group)), options_(options), clocks_agree_(on_one_machine(*group_)) {
  if (options_.root < 0 || options_.root >= group_->world_size())
    throw InvalidArgument("--root {}: the ranks are 0 to {}", options_.root, group_->world_size() - 1);
  const MessageLayout layout =
      layout_of(*options_.kind, largest, options_.dtype, group_->world_size(), options_.in_place);
  if (!options_.kind->moves_data()) return;
  const bool on_host = options_.device == DeviceKind::kCpu,
             shared = on_host && !options_.plain && has_shared_parts(*group_);
  peers_.resize(shared ? static_cast<std::size_t>(group_->world_size()) : 0);
  const auto take = [&](std::byte* Memory::*side, std::size_t bytes, std::vector<std::byte>& plain) {
    bytes = std::max<std::size_t>(bytes, sizeof(std::int64_t));
    if (options_.plain || !on_host) {
      plain.resize(bytes);
      memory_.*side = plain.data();
      return;
    }
    const Buffer& buffer = registered_.emplace_back(group_->allocate(bytes));
    memory_.*side = buffer.data();
    if (!shared) return;
    const SharedParts parts(*group_, buffer);
    for (int rank = 0; rank < group_->world_size(); ++rank)
      peers_[static_cast<std::size_t>(rank)].*side = parts.of(rank);
  };
  take(&Memory::receive, layout.in_place ? layout.message_bytes() : layout.receive_bytes(), plain_receive_);
  if (!layout.in_place) take(&Memory::send, layout.send_bytes(), plain_send_);
  called_memory_ = memory_;
  if (!on_host) take_on_device();
}

// Allocates a buffer on the device for each of the host's buffers.
void Measurement::take_on_device() {
  Device& device = group_->local_device();
  const auto copy_of = [&](const std::vector<std::byte>& host) -> std::byte* {
    if (host.empty()) return nullptr;
    const bool registered = !options_.plain;
    return registered_
        .emplace_back(registered ? group_->allocate(host.size(), options_.device) : device.allocate(host.size()))
        .data();
  };
  called_memory_ = {};
  called_memory_.receive = copy_of(plain_receive_);
  called_memory_.send = copy_of(plain_send_);
}

void Measurement::to_device() {
  if (options_.device == DeviceKind::kCpu) return;
  Device& device = group_->local_device();
  Stream& stream = device.default_stream();
  device.copy(called_memory_.receive, plain_receive_.data(), plain_receive_.size(), stream);
  device.copy(called_memory_.send, plain_send_.data(), plain_send_.size(), stream);
  stream.synchronize();
}

void Measurement::from_device() {
  if (options_.device == DeviceKind::kCpu) return;
  Device& device = group_->local_device();
  Stream& stream = device.default_stream();
  device.copy(plain_receive_.data(), called_memory_.receive, plain_receive_.size(), stream);
  device.copy(plain_send_.data(), called_memory_.send, plain_send_.size(), stream);
  stream.synchronize();
}

std::optional<Bound> Measurement::bound_of(const MessageLayout& layout, const Call& call) const {
  if (peers_.empty() || !Bound::exists(*options_.kind, layout)) return std::nullopt;
  std::vector<Memory> ends;
  ends.reserve(peers_.size());
  for (int rank = 0; rank < layout.ranks; ++rank)
    ends.push_back(ends_of(layout, peers_[static_cast<std::size_t>(rank)], rank));
  return Bound(*options_.kind, layout, call, group_->rank(), std::move(ends));
}

// Bound and call alternate, each on newly filled buffers, so that the caches are in the same state for both.
Measurement::Rounds Measurement::run_rounds(const TestData& data, const Call& call, Bound* bound, std::size_t rounds) {
  Rounds times;
  for (std::size_t round = 0; round < rounds + kWarmUp; ++round) {
    std::int64_t bound_ns = 0;
    if (bound != nullptr) {
      data.fill(memory_, Values::kExact);
      group_->barrier();
      const std::int64_t start = now_ns();
      bound->run();
      bound_ns = now_ns() - start;
      group_->barrier();  // a peer may still write into this rank's buffers
    }
    data.fill(memory_, Values::kExact);
    to_device();
    group_->barrier();
    const std::int64_t entry = now_ns();
    options_.kind->run(*group_, call);
    const std::int64_t end = now_ns();
    if (round < kWarmUp) continue;
    times.entries.push_back(entry);
    times.returns.push_back(end);
    times.bounds.push_back(bound_ns);
  }
  return times;
}

std::vector<std::int64_t> Measurement::from_all(const std::vector<std::int64_t>& mine) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group_->world_size()));
  group_->all_gather(mine.data(), all.data(), mine.size(), DType::kInt64);
  return all;
}

void Measurement::summarize(const Rounds& mine, Row& row) {
  const std::size_t rounds = mine.entries.size(), ranks = static_cast<std::size_t>(group_->world_size());
  const auto entries = from_all(mine.entries), returns = from_all(mine.returns), bounds = from_all(mine.bounds);
  const double share = options_.kind->pairs ? 0.5 : 1;  // there and back
  std::vector<double> times, skews, transfers, bound_times;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::int64_t time = 0, first = entries[round], last = first, end = returns[round], bound = 0;
    for (std::size_t at = round; at < rounds * ranks; at += rounds) {
      time = std::max(time, returns[at] - entries[at]);
      first = std::min(first, entries[at]);
      last = std::max(last, entries[at]);
      end = std::max(end, returns[at]);
      bound = std::max(bound, bounds[at]);
    }
    times.push_back(share * static_cast<double>(time));
    skews.push_back(static_cast<double>(last - first));
    transfers.push_back(share * static_cast<double>(end - last));
    bound_times.push_back(static_cast<double>(bound));
  }
  row.p50 = median_us(times);
  row.p90 = quantile(times, 0.9) / 1e3;
  row.p99 = quantile(times, 0.99) / 1e3;
  row.spread = row.p50 > 0 ? (row.p90 - quantile(times, 0.1) / 1e3) / row.p50 : 0;
  if (clocks_agree_) {
    row.skew = median_us(skews);
    row.transfer = median_us(transfers);
  }
  if (median_us(bound_times) > 0) row.bound = median_us(bound_times);
}

// Exact sums do not depend on the order; sums of these inputs do.
std::optional<bool> Measurement::gives_same_bits(const TestData& data, const Call& call) {
  if (!options_.kind->moves_data()) return std::nullopt;
  std::string first;
  bool same = true;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    data.fill(memory_, Values::kRough);
    to_device();
    group_->barrier();
    options_.kind->run(*group_, call);
    from_device();
    const std::string hash = data.hash_result(memory_);
    if (repeat == 0) first = hash;
    same = same && hash == first;
  }
  const auto everybodys = group_->all_gather_text(same ? first : "unlike");
  for (const std::string& hash : everybodys)
    same = same && hash != "unlike" && (!options_.kind->same_on_all || hash == everybodys[0]);
  return same;
}

Row Measurement::measure(std::size_t bytes) {
  Row row;
  row.layout = layout_of(*options_.kind, bytes, options_.dtype, group_->world_size(), options_.in_place);
  row.rounds = options_.rounds != 0 ? options_.rounds : rounds_for(row.layout.message_bytes());
  const Memory ends = ends_of(row.layout, called_memory_, group_->rank());
  const Call call{ends.send,
                  ends.receive,
                  row.layout.count,
                  options_.dtype,
                  options_.op,
                  options_.root,
                  premul_factor(group_->rank()),
                  options_.device};
  const TestData data(*options_.kind, row.layout, call, group_->rank());
  std::optional<Bound> bound = bound_of(row.layout, call);
  summarize(run_rounds(data, call, bound ? &*bound : nullptr, row.rounds), row);
  from_device();
  row.wrong = static_cast<std::int64_t>(data.count_wrong(memory_, options_.check));
  group_->all_reduce(std::span(&row.wrong, 1));
  row.same_bits = gives_same_bits(data, call);
  return row;
}

}  // namespace lockstep::bench
