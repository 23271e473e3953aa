#include <random>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct EmbeddingCase {
  Index words, width, count, padding;
  bool outside;  // some indices are outside the table

  std::string name() const {
    return fmt::format("{} of {} rows of {}, padding {}{}", count, words, width, padding,
                       outside ? ", some outside" : "");
  }
};

const std::vector<EmbeddingCase> kEmbeddings = {{1, 1, 1, -1, false},  {5, 3, 0, -1, false},    {7, 5, 40, 2, false},
                                                {3, 70, 300, 0, true}, {65, 33, 600, -1, true}, {300, 4, 20, 7, false},
                                                {5, 0, 3, 1, false},   {1030, 8, 40, 3, true}};

InputView indices_in(Bench& b, const EmbeddingCase& c) {
  std::mt19937 random(9);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(c.count));
  for (std::int64_t& index : indices) index = static_cast<Index>(random() % static_cast<unsigned>(c.words));
  if (c.outside) indices[1] = -1, indices[2] = c.words, indices.back() = Index{1} << 40;
  return b.labels_in(indices);
}

Work look_up(const EmbeddingCase& c) {
  return [=](Bench& b) {
    const InputView weight = b.floats_in({c.words, c.width}, uniform(c.words * c.width, 1)), indices = indices_in(b, c);
    const OutputView y = b.out({c.count, c.width}, uniform(c.count * c.width, 2));
    return [=, &b] { b.kernels.embedding(weight, indices, y, b.stream()); };
  };
}

Work add_gradients(const EmbeddingCase& c, bool accumulate) {
  return [=](Bench& b) {
    const InputView y_grad = b.in({c.count, c.width}, uniform(c.count * c.width, 3)), indices = indices_in(b, c);
    const OutputView weight_grad =
        b.floats_out({c.words, c.width}, uniform(c.words * c.width, 4), accumulate, Place::kOneElementOff);
    return [=, &b] { b.kernels.embedding_backward(y_grad, indices, c.padding, weight_grad, b.stream()); };
  };
}

}  // namespace

void embedding(Cases& cases) {
  for (const EmbeddingCase& c : kEmbeddings) cases.test(c.name(), {kExact}, look_up(c));
  cases.large_row("embedding", 4 + cases.element_bytes(), look_up({65, 256, cases.sizes.elements / 256, -1, false}));
}

// All devices add in the same order, so results agree bit for bit.
void embedding_backward(Cases& cases) {
  for (const EmbeddingCase& c : kEmbeddings)
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", c.name(), accumulate), {kExact}, add_gradients(c, accumulate));
  cases.large_row("embedding backward", cases.element_bytes(),
                  add_gradients({65, 256, cases.sizes.elements / 256, -1, false}, false));
}

}  // namespace lockstep::testing::cases
