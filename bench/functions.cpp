// Times functions that are composed of several operators, forward and backward (those of "sample": forward alone), for
// bench/peers/functions_torch.py:
//   OMP_NUM_THREADS=1 build/bench/functions [--only var,einsum] [--rounds 5]
//
// Prints a JSON object: for each function the least time of its rounds, in ms.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cxxopts.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;
using ls::Shape;
using ls::Tensor;

struct Function {
  std::string name;
  std::vector<Tensor> leaves;  // empty: forward alone
  std::function<Tensor()> call;
};

Tensor leaf(const Shape& shape) {
  const Tensor x = Tensor::empty(shape);
  ls::fill_uniform(x, 0.1F, 1);
  ls::require_grad(x);
  return x;
}

Tensor indices(const Shape& shape, std::uint32_t bound) {
  const Tensor x = Tensor::empty(shape, ls::DType::kInt64);
  ls::Philox random(3, 0);
  for (std::int64_t& each : x.span<std::int64_t>()) each = random.below(bound);
  return x;
}

// A mask of that type with ones, or zeros that are added, below the diagonal.
Tensor attention_mask(ls::DType type, std::int64_t length) {
  const Tensor mask = Tensor::empty({1, 1, length, length}, type);
  for (std::int64_t q = 0; q < length; ++q)
    for (std::int64_t k = 0; k < length; ++k)
      if (type == ls::DType::kUInt8)
        mask.data<std::uint8_t>()[q * length + k] = k <= q ? 1 : 0;
      else
        mask.data<float>()[q * length + k] = k <= q ? 0 : -std::numeric_limits<float>::infinity();
  return mask;
}

std::vector<Function> functions() {
  const Tensor x = leaf({1024, 1024}), y = leaf({1024, 1024});
  std::vector<Function> all;
  const auto add = [&](const char* name, std::vector<Tensor> leaves, std::function<Tensor()> call) {
    all.push_back({name, std::move(leaves), std::move(call)});
  };
  add("var", {x}, [=] { return ls::var(x, {1}); });
  add("var_columns", {x}, [=] { return ls::var(x, {0}); });
  add("std", {x}, [=] { return ls::stddev(x, {1}); });
  add("norm", {x}, [=] { return ls::norm(x, 2, {1}); });
  add("norm_1", {x}, [=] { return ls::norm(x, 1, {1}); });
  add("prod", {x}, [=] { return ls::prod(x, {1}); });
  add("logsumexp", {x}, [=] { return ls::logsumexp(x, {1}); });
  add("cumsum", {x}, [=] { return ls::cumsum(x, 1); });
  add("sort", {x}, [=] { return ls::sort(x).values; });
  add("topk", {x}, [=] { return ls::topk(x, 10).values; });
  add("flip", {x}, [=] { return ls::flip(x, {1}); });
  add("roll", {x}, [=] { return ls::roll(x, 100, 1); });
  add("clamp", {x}, [=] { return ls::clamp(x, 0.3F, 0.7F); });
  add("maximum", {x, y}, [=] { return ls::maximum(x, y); });
  add("sin", {x}, [=] { return ls::sin(x); });
  add("erf", {x}, [=] { return ls::erf(x); });
  add("pow", {x, y}, [=] { return ls::pow(x, y); });
  add("tril", {x}, [=] { return ls::tril(x); });
  const Tensor rows = indices({1024}, 1024), places = indices({1024, 1024}, 1024);
  add("index_select", {x}, [=] { return ls::index_select(x, 0, rows); });
  add("gather", {x}, [=] { return ls::gather(x, 1, places); });
  add("scatter_add", {x, y}, [=] { return ls::scatter_add(x, 1, places, y); });
  const Tensor a = leaf({16, 128, 96}), b = leaf({16, 96, 64});
  add("einsum_product", {a, b}, [=] { return ls::einsum("bij,bjk->bik", a, b); });
  add("einsum_outer", {x, y}, [=] { return ls::einsum("ij,ij->i", x, y); });
  const Tensor q = leaf({4, 256, 8, 64}), k = leaf({4, 256, 8, 64}), v = leaf({4, 256, 8, 64});
  const auto attend = [&](const char* name, ls::AttentionOptions options) {
    add(name, {q, k, v}, [=] { return ls::scaled_dot_product_attention(q, k, v, options); });
  };
  attend("attention", {});
  attend("attention_causal", {.causal = true});
  attend("attention_bool_mask", {.mask = attention_mask(ls::DType::kUInt8, 256)});
  attend("attention_float_mask", {.mask = attention_mask(ls::DType::kFloat32, 256)});
  const Tensor labels = indices({16, 10}, 31), times = Tensor::empty({16}, ls::DType::kInt64),
               lengths = Tensor::empty({16}, ls::DType::kInt64);
  for (std::int64_t& label : labels.span<std::int64_t>()) ++label;  // 0 is the blank
  std::ranges::fill(times.span<std::int64_t>(), 50);
  std::ranges::fill(lengths.span<std::int64_t>(), 10);
  const Tensor scores = leaf({16, 50, 32});
  add("ctc_loss", {scores}, [=] { return ls::ctc_loss(ls::log_softmax(scores), labels, times, lengths); });
  const auto lstm = std::make_shared<ls::nn::LSTM>(256, 256);
  const auto gru = std::make_shared<ls::nn::GRU>(256, 256);
  const auto with_weights = [](const ls::nn::Module& layer, const Tensor& input) {
    std::vector<Tensor> leaves = layer.parameters();
    leaves.push_back(input);
    return leaves;
  };
  const Tensor series = leaf({16, 50, 256}), sample = leaf({1, 50, 256});
  add("lstm", with_weights(*lstm, series), [=] { return lstm->forward(series); });
  add("gru", with_weights(*gru, series), [=] { return gru->forward(series); });
  add("lstm_sample", {}, [=] { return lstm->forward(sample); });
  add("gru_sample", {}, [=] { return gru->forward(sample); });
  return all;
}

// Backward begins with a gradient in memory, as it has in a model.
double round_ms(const Function& function) {
  using Clock = std::chrono::steady_clock;
  std::optional<ls::NoGrad> forward_alone;
  if (function.leaves.empty()) forward_alone.emplace();
  const Tensor gradient = Tensor::empty(function.call().shape());
  ls::fill_uniform(gradient, 0.1F, 1);
  const auto begin = Clock::now();
  int calls = 0;
  std::chrono::duration<double, std::milli> took{};
  do {
    for (const Tensor& each : function.leaves) ls::clear_grad(each);
    const Tensor result = function.call();
    if (!forward_alone) result.backward({.gradient = gradient});
    ++calls;
    took = Clock::now() - begin;
  } while (took.count() < 50);
  return took.count() / calls;
}

int measure(int argc, char** argv) {
  cxxopts::Options cli("functions", "Times composed functions");
  cxxopts::OptionAdder add = cli.add_options();
  add("only", "names, with commas", cxxopts::value<std::vector<std::string>>());
  add("rounds", "how many", cxxopts::value<int>()->default_value("5"));
  const auto given = ls::examples::parse_naming_flags(cli, argc, argv);
  const int rounds = given["rounds"].as<int>();
  if (rounds < 1) throw ls::InvalidArgument("functions: --rounds must be positive");
  std::vector<Function> all = functions();
  if (given.count("only") != 0) {
    const auto only = given["only"].as<std::vector<std::string>>();
    for (const std::string& name : only)
      if (std::none_of(all.begin(), all.end(), [&](const Function& each) { return each.name == name; }))
        throw ls::InvalidArgument("functions: --only: unknown function '{}'", name);
    std::erase_if(all,
                  [&](const Function& each) { return std::find(only.begin(), only.end(), each.name) == only.end(); });
  }
  nlohmann::ordered_json times;
  for (const Function& each : all) {
    round_ms(each);
    double least = round_ms(each);
    for (int round = 1; round < rounds; ++round) least = std::min(least, round_ms(each));
    times[each.name] = least;
  }
  fmt::print("{}\n", times.dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("functions", measure, argc, argv); }
