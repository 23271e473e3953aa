// The process group without any training: each collective once. Run it from the build's folder:
//
//   launcher/lockrun -n 4 examples/collectives
//
//   [0] mean of all ranks: 1.5
//   [0] words by rank: one two two three three three four four four four
//   [0] mailbox: 100 from rank 1
//   [0] mailbox: 200 from rank 2
//   [0] mailbox: 300 from rank 3
//   [0] even ranks: 2, odd ranks: 4
//   [0] settings: {"lr":0.1,"seed":7}
#include <lockstep/comm/objects.h>
#include <lockstep/lockstep.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

int run(int, char**) {
  const auto group = ls::init_process_group();
  const int rank = group->rank(), ranks = group->world_size();
  const bool speaks = rank == 0;

  // The average of all ranks' values, on every rank. Memory from allocate() is fastest; any pointer works.
  auto mean = static_cast<float>(rank);
  group->all_reduce(std::span(&mean, 1), ls::ReduceOp::kAvg);
  if (speaks) std::printf("mean of all ranks: %g\n", mean);

  // Parts of unequal length: rank r gives r + 1 words of eight letters.
  const std::string words[] = {"one     ", "two     ", "three   ", "four    "};
  std::vector<std::size_t> letters;
  std::size_t all = 0;
  for (int r = 0; r < ranks; ++r) all += letters.emplace_back(8 * (static_cast<std::size_t>(r) + 1));
  std::string mine, everybodys(all, ' ');
  for (int i = 0; i <= rank; ++i) mine += words[rank % 4];
  group->all_gather(mine.data(), everybodys.data(), letters, ls::DType::kUInt8);
  if (speaks) {
    std::printf("words by rank:");
    for (std::size_t at = 0; at < all; at += 8)
      std::printf(" %s", everybodys.substr(at, everybodys.find(' ', at) - at).c_str());
    std::printf("\n");
  }

  // Messages from rank to rank, with a tag. kAnyRank takes the message that arrives first; here the order is fixed.
  const std::int32_t number = rank * 100;
  if (!speaks) group->send(&number, 1, ls::DType::kInt32, /*to=*/0, /*tag=*/5);
  for (int from = 1; speaks && from < ranks; ++from) {
    std::int32_t got = 0;
    const int sender = group->recv(&got, 1, ls::DType::kInt32, from, 5);
    std::printf("mailbox: %d from rank %d\n", got, sender);
  }

  // One group of the even ranks and one of the odd ranks, which work at the same time. Then rank 1 broadcasts the odd
  // sum.
  const auto half = group->split(/*color=*/rank % 2);
  std::int64_t sum = rank;
  half->all_reduce(std::span(&sum, 1));
  std::int64_t odd = sum;
  group->broadcast(std::span(&odd, 1), /*root=*/ranks > 1 ? 1 : 0);
  if (speaks)
    std::printf("even ranks: %lld, odd ranks: %lld\n", static_cast<long long>(sum), static_cast<long long>(odd));

  // JSON values: all ranks get rank 0's.
  const nlohmann::json settings = ls::broadcast_object(*group, {{"lr", 0.1}, {"seed", 7 + rank}}, /*root=*/0);
  if (speaks) std::printf("settings: %s\n", settings.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("collectives", run, argc, argv); }
