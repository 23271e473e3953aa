// A decoder-only transformer on the characters of tiny Shakespeare, which generates a text in the end. From the
// repository's root:
//
//   scripts/fetch-data tinyshakespeare
//   build/launcher/lockrun -n 2 build/examples/gpt --data data
//
// It prints its progress, the validation loss and the text. With --steps 60 (of 1,568), after 30 s of CPU time of two
// ranks (AMD Zen 4):
//
//   validation loss 2.560 on 111360 characters
#include <lockstep/lockstep.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;
namespace {

constexpr std::int64_t kLayers = 4, kWidth = 128, kHeads = 4, kLength = 128;  // kLength: characters that the model sees

// Attention and a feed-forward pair, each after its normalisation and with a shortcut (Radford et al. 2019, section
// 2.3).
struct Block : nn::Module {
  nn::LayerNorm norm1{kWidth}, norm2{kWidth};
  nn::MultiheadAttention attention{kWidth, kHeads, {.causal = true}};
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  Block() {
    add("norm1", norm1), add("attention", attention), add("norm2", norm2), add("up", up), add("down", down);
    // 0.02 / sqrt(2 * kLayers), since the shortcuts add up the outputs of these layers.
    for (const ls::Tensor& weight : {attention.out_proj.weight, down.weight}) nn::init::normal(weight, 0, 0.007F);
  }
  ls::Tensor forward(const ls::Tensor& input) override {  // (N, T, C)
    const auto [x, normal] = norm2.of_sum(input, attention(norm1(input)));
    return x + ls::feed_forward(normal, {up.weight, up.bias, down.weight, down.bias});
  }
};

// Characters (N, T) to logits (N * T, characters). The head shares its weight with the embedding of the characters.
struct Gpt : nn::Module {
  nn::Embedding characters, places{kLength, kWidth};
  nn::Sequential blocks;
  nn::LayerNorm norm{kWidth};
  explicit Gpt(std::int64_t vocabulary) : characters(vocabulary, kWidth) {
    add("characters", characters), add("places", places);
    for (int i = 0; i < kLayers; ++i) blocks.append<Block>();
    add("blocks", blocks), add("norm", norm);
    for (const nn::Embedding* table : {&characters, &places}) nn::init::normal(table->weight, 0, 0.02F);
  }
  ls::Tensor forward(const ls::Tensor& text) override {
    const ls::Tensor x = characters(text) + ls::slice(places.weight, 0, {.stop = text.shape()[1]});
    const ls::Tensor logits = ls::matmul(norm(blocks(x)), characters.weight, {.transpose_b = true});
    return ls::reshape(logits, {text.count(), characters.weight.shape()[0]});
  }
};

struct Flags : ex::TrainingFlags {
  std::int64_t accumulate = 2, sample = 300;
};

// `count` characters after a new line, the vocabulary's first character, drawn from the model's distribution at
// temperature 0.8.
std::string write_text(Gpt& net, const ls::data::CharacterVocabulary& vocabulary, std::int64_t count,
                       std::uint64_t seed) {
  const ls::NoGrad no_grad;
  ls::Philox random(seed, 0);
  std::vector<std::int64_t> text = {0};
  while (static_cast<std::int64_t>(text.size()) <= count) {
    const auto seen = std::span<const std::int64_t>(text).last(std::min<std::size_t>(text.size(), kLength));
    const auto length = static_cast<std::int64_t>(seen.size());
    const ls::Tensor logits = net(ls::Tensor::from(seen, {1, length}).to(net.norm.weight.device()));
    const ls::Tensor chances = ls::softmax(ls::slice(logits, 0, {.start = length - 1}) / 0.8F).to(ls::cpu_device());
    std::int64_t chosen = 0;
    for (float left = random.uniform() - chances.span<float>()[0]; left >= 0 && chosen + 1 < vocabulary.size();
         ++chosen)
      left -= chances.data<float>()[chosen + 1];
    text.push_back(chosen);
  }
  return vocabulary.decode(text);
}

// Once in each step, the ranks exchange the sum of the gradients of --accumulate parts.
void run_steps(const Flags& flags, const ls::data::Dataset& text, ls::DistributedDataParallel& ddp,
               ls::optim::AdamW& adam, ls::optim::LossScaler* scaler) {
  const ls::ProcessGroup& group = ddp.group();
  const ex::Steps steps = steps_of(flags, text.size());
  ls::train::Progress progress(progress_of(flags, steps, group, "sequences"));
  ex::LossCheck check(nullptr, flags.log_every);
  const ls::optim::CosineRate rate{
      .peak = flags.lr, .total_steps = steps.total, .warmup_steps = steps.total / 15, .lowest = flags.lr / 30};
  ls::data::DistributedSampler sampler(text.size(), group.place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  const std::int64_t part_size = flags.batch / group.world_size() / flags.accumulate;
  for (std::int64_t step = 0, part = 0; step < steps.last; part = 0) {
    ls::Tensor loss_sum;  // of the parts of a step, on the device: reading it waits for the device
    sampler.set_epoch(step / steps.per_epoch);
    ls::data::DataLoader loader(text, sampler,
                                {.batch_size = part_size, .device = &group.local_device(), .drop_last = true});
    for (auto& [characters, next] : loader) {
      if (part == 0) adam.zero_grad(), loss_sum = ls::Tensor::full({}, 0, group.local_device());
      std::optional<ls::DistributedDataParallel::NoSync> alone;
      part = (part + 1) % flags.accumulate;
      if (part != 0) alone.emplace(ddp);
      const ls::Tensor loss =
          nn::cross_entropy(ddp(characters), next.reshaped({next.count()})) / static_cast<float>(flags.accumulate);
      loss_sum = loss_sum + ls::detach(loss);
      (scaler != nullptr ? scaler->scale(loss) : loss).backward();
      if (alone) continue;
      ls::optim::clip_grad_norm(ddp.parameters(), 1.0F, {.loss_scaler = scaler});
      adam.set_lr(rate.at(step));
      adam.step();
      progress.step(++step, loss_sum, flags.batch);
      check.step(step, loss_sum, step == steps.last);
      if (step == steps.last) break;
    }
  }
}

int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  check_json_file(flags, *group);
  const std::string file = find_data(flags, "tinyshakespeare", {"input.txt"}) + "/input.txt";
  const ls::data::CharacterDataset windows(file, {.length = kLength, .stride = 20}), whole(file, {.length = kLength});
  const auto text = take(windows, windows.size() * 9 / 10),
             rest = skip(whole, std::min(whole.size() * 9 / 10 + 2, whole.size()));
  if (flags.accumulate < 1 || batch_of_rank(flags, group->world_size(), text.size()) % flags.accumulate != 0)
    throw ls::InvalidArgument("--accumulate {}: must divide the number of samples that a rank has in a step",
                              flags.accumulate);

  const ls::AutoCast autocast(type);  // for training, evaluation and the text
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  Gpt net(windows.vocabulary().size());
  net.to(group->local_device());
  ls::DistributedDataParallel ddp(net, group);
  std::vector<ls::NamedTensor> matrices, vectors;  // biases and norms' weights have no weight decay
  for (const ls::NamedTensor& parameter : ddp.parameters())
    (parameter.tensor.shape().dims() > 1 ? matrices : vectors).push_back(parameter);
  ls::optim::AdamW adam(matrices, {.beta2 = 0.99, .weight_decay = 0.1F, .loss_scaler = scaler});
  adam.add_group({.parameters = vectors, .weight_decay = 0.0F});
  run_steps(flags, text, ddp, adam, scaler);

  ls::train::Mean loss([](const ls::Tensor& logits, const ls::Tensor& next) {
    return ls::train::cross_entropy_of_samples(logits, next.reshaped({next.count()}));
  });
  ls::train::evaluate(net, rest, {&loss}, {.batch_size = 16, .device = &group->local_device()});
  const std::string written = write_text(net, windows.vocabulary(), flags.sample, flags.seed);
  if (group->rank() == 0)
    fmt::print("validation loss {:.3f} on {} characters\n{}\n", loss.value(), loss.samples(), written);
  write_json_file(flags, *group, {{"validation_loss", loss.value()}, {"seed", flags.seed}});
  return 0;
}

int run(int argc, char** argv) {
  Flags flags{{.batch = 32, .lr = 3e-3F}};
  const ex::Program program{"gpt", "Trains a transformer on the characters of tiny Shakespeare on every rank.",
                            "input.txt"};
  const bool wanted = read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) {
    add_dtype(add, flags);
    add("accumulate", "parts of a rank's batch, one after the other",
        cxxopts::value(flags.accumulate)->default_value("2"));
    add("sample", "characters to write at the end", cxxopts::value(flags.sample)->default_value("300"));
  });
  return wanted ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("gpt", run, argc, argv); }
