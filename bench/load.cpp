// How long the ranks of a job take to have a pretrained model: rank 0 reads the file and sends the weights, or every
// rank maps the file itself.
//   lockrun -n 2 build/bench/load --folder DIR --layers 12 --rounds 5
//
// Rank 0 writes a GPT-2 of random weights into the folder. Each round times both ways, one after the other, from a
// barrier until the last rank has its weights; first with the file in the page cache, then after the kernel was asked
// to drop it ("cold"). Rank 0 prints a JSON line with the medians.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cxxopts.hpp>
#include <map>
#include <string>
#include <vector>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

// Only a hint to the kernel, which keeps pages that another process has mapped.
void drop_from_cache(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

int measure(int argc, char** argv) {
  cxxopts::Options cli("load", "Times two ways to load a pretrained model on all ranks");
  cxxopts::OptionAdder add = cli.add_options();
  add("folder", "for the model", cxxopts::value<std::string>());
  add("layers", "of GPT-2; 12: 124 million parameters", cxxopts::value<int>()->default_value("12"));
  add("rounds", "how many", cxxopts::value<int>()->default_value("5"));
  const auto given = ls::examples::parse_naming_flags(cli, argc, argv);
  const std::string folder = given["folder"].as<std::string>(), file = folder + "/model.safetensors";
  const int layers = given["layers"].as<int>(), rounds = given["rounds"].as<int>();
  if (layers < 1 || rounds < 1) throw ls::InvalidArgument("load: --layers and --rounds must be positive");

  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const ls::models::Gpt2Config config{.layers = layers};
  ls::models::Gpt2 net(config);
  const ls::models::NameMapping names = ls::models::gpt2_names();
  if (group->rank() == 0) ls::models::save_pretrained(net, folder, {.names = names, .config = config.json()});

  std::map<std::string, std::vector<double>> times;
  const auto time = [&](const std::string& name, const std::shared_ptr<ls::ProcessGroup>& reader) {
    for (const bool cold : {false, true}) {
      group->barrier();
      if (cold && group->rank() == 0) drop_from_cache(file);
      group->barrier();
      const auto begin = std::chrono::steady_clock::now();
      ls::models::load_pretrained(net, folder, {.names = names, .group = reader});
      group->barrier();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      times[name + (cold ? "_cold_ms" : "_ms")].push_back(took.count());
    }
  };
  for (int round = 0; round < rounds; ++round) {
    time("rank_0_reads", group);
    time("every_rank_maps", nullptr);
  }
  if (group->rank() != 0) return 0;
  fmt::print("{{\"ranks\": {}, \"layers\": {}", group->world_size(), layers);
  for (const auto& [name, values] : times) fmt::print(", \"{}\": {:.1f}", name, ls::bench::quantile(values, 0.5));
  fmt::print("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("load", measure, argc, argv); }
