// A recurrent network (GRU) on the characters of tiny Shakespeare, which generates a text in the end. From the
// repository's root:
//
//   scripts/fetch-data tinyshakespeare
//   build/launcher/lockrun -n 2 build/examples/char_gru --data data
//
// It prints its progress, the validation loss and the text. examples/gpt.cpp does the same with a transformer.
#include <lockstep/lockstep.h>

#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;
namespace {

constexpr std::int64_t kWidth = 256, kLayers = 2, kLength = 128;  // kLength: characters of a training sequence

// Characters (N, T) to logits (N * T, characters).
struct CharGru : nn::Module {
  nn::Embedding characters;
  nn::GRU gru{kWidth, kWidth, {.num_layers = kLayers, .dropout = 0.1F}};
  nn::Linear head;
  explicit CharGru(std::int64_t vocabulary) : characters(vocabulary, kWidth), head(kWidth, vocabulary) {
    add("characters", characters), add("gru", gru), add("head", head);
  }
  ls::Tensor forward(const ls::Tensor& text) override { return logits_of(gru(characters(text))); }

  // The logits of the next character, and the state after it; the state before the first one is undefined.
  ls::Tensor next(std::int64_t character, ls::Tensor& state) {
    const ls::Tensor text = ls::Tensor::from<std::int64_t>({&character, 1}, {1, 1}).to(head.weight.device());
    const ls::GruResult result = gru.run(characters(text), {.h = state});
    state = result.h;
    return logits_of(result.output);
  }

 private:
  ls::Tensor logits_of(const ls::Tensor& output) {
    return head(ls::reshape(output, {output.shape()[0] * output.shape()[1], kWidth}));
  }
};

struct Flags : ex::TrainingFlags {
  std::int64_t sample = 300;
};

// `count` characters after a new line, the vocabulary's first character, drawn from the model's distribution at
// temperature 0.8.
std::string write_text(CharGru& net, const ls::data::CharacterVocabulary& vocabulary, std::int64_t count,
                       std::uint64_t seed) {
  const ls::NoGrad no_grad;
  net.train(false);
  ls::Philox random(seed, 0);
  ls::Tensor state;
  std::vector<std::int64_t> text = {0};
  while (static_cast<std::int64_t>(text.size()) <= count) {
    const ls::Tensor chances = ls::softmax(net.next(text.back(), state) / 0.8F).to(ls::cpu_device());
    std::int64_t chosen = 0;
    for (float left = random.uniform() - chances.span<float>()[0]; left >= 0 && chosen + 1 < vocabulary.size();
         ++chosen)
      left -= chances.data<float>()[chosen + 1];
    text.push_back(chosen);
  }
  return vocabulary.decode(text);
}

void run_steps(const Flags& flags, const ls::data::Dataset& text, ls::DistributedDataParallel& ddp,
               ls::optim::Adam& adam) {
  const ls::ProcessGroup& group = ddp.group();
  const ex::Steps steps = steps_of(flags, text.size());
  ls::train::Progress progress(progress_of(flags, steps, group, "sequences"));
  ex::LossCheck check(nullptr, flags.log_every);
  const ls::optim::CosineRate rate{.peak = flags.lr, .total_steps = steps.total, .lowest = flags.lr / 30};
  ls::data::DistributedSampler sampler(text.size(), group.place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  const std::int64_t batch = batch_of_rank(flags, group.world_size(), text.size());
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);
    ls::data::DataLoader loader(text, sampler,
                                {.batch_size = batch, .device = &group.local_device(), .drop_last = true});
    for (auto& [characters, next] : loader) {
      adam.zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(characters), next.reshaped({next.count()}));
      loss.backward();
      ls::optim::clip_grad_norm(ddp.parameters(), 1.0F);  // of long sequences, which may explode
      adam.set_lr(rate.at(step));
      adam.step();
      progress.step(++step, loss, flags.batch);
      check.step(step, loss, step == steps.last);
      if (step == steps.last) break;
    }
  }
}

int train(const Flags& flags) {
  const auto group = ls::init_process_group();
  check_json_file(flags, *group);
  const std::string file = find_data(flags, "tinyshakespeare", {"input.txt"}) + "/input.txt";
  const ls::data::CharacterDataset windows(file, {.length = kLength, .stride = 20}), whole(file, {.length = kLength});
  const auto text = take(windows, windows.size() * 9 / 10),
             rest = skip(whole, std::min(whole.size() * 9 / 10 + 2, whole.size()));

  ls::manual_seed(flags.seed);
  CharGru net(windows.vocabulary().size());
  net.to(group->local_device());
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::Adam adam(ddp.parameters());
  run_steps(flags, text, ddp, adam);

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
  Flags flags{{.batch = 64, .lr = 2e-3F}};
  const ex::Program program{"char_gru", "Trains a GRU on the characters of tiny Shakespeare on every rank.",
                            "input.txt"};
  const bool wanted = read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) {
    add("sample", "characters to write at the end", cxxopts::value(flags.sample)->default_value("300"));
  });
  return wanted ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("char_gru", run, argc, argv); }
