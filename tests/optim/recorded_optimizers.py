"""Prints recorded_optimizers.h: weights after 100 steps of PyTorch's optimizers and of Keras' Nadam, in float64.

KERAS_BACKEND=torch python tests/optim/recorded_optimizers.py | clang-format > tests/optim/recorded_optimizers.h    (pip install torch keras)

The first weights and the gradients are fractions of powers of two, exact in float32: formulas_test.cpp makes the same ones, with the same options.
"""

import keras
import torch

STEPS, COUNT = 100, 8

CASES = {
    "sgd": (torch.optim.SGD, dict(lr=1e-2)),
    "sgd_momentum_decay": (torch.optim.SGD, dict(lr=1e-3, momentum=0.9, weight_decay=0.01)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=1e-3, momentum=0.9, nesterov=True)),
    "adam": (torch.optim.Adam, {}),
    "adam_l2": (torch.optim.Adam, dict(lr=1e-2, betas=(0.8, 0.999), weight_decay=0.1)),
    "adamw": (torch.optim.AdamW, {}),
    "adamw_large": (torch.optim.AdamW, dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.5)),
    "nadam": (torch.optim.NAdam, {}),
    "nadam_l2": (torch.optim.NAdam, dict(lr=1e-2, weight_decay=0.1, momentum_decay=0.1)),
    "nadam_decoupled": (torch.optim.NAdam, dict(weight_decay=0.1, decoupled_weight_decay=True)),
    "nadam_keras": (keras.optimizers.Nadam, {}),
    "rmsprop": (torch.optim.RMSprop, dict(lr=1e-3)),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(lr=1e-3, momentum=0.9, weight_decay=0.1)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=1e-3, alpha=0.9, centered=True)),
    "rmsprop_centered_momentum": (torch.optim.RMSprop, dict(lr=1e-4, alpha=0.9, momentum=0.9, centered=True)),
    "adagrad": (torch.optim.Adagrad, {}),
    "adagrad_all": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.05, initial_accumulator_value=0.1, weight_decay=0.01)),
}


def first_weights():
    return [(1 if i % 2 == 0 else -1) * (8 + i) / 4 for i in range(COUNT)]


def gradients(step):
    return [((13 * step + 29 * i) % 64 - 24) / 64 / 8 ** (i % 4) for i in range(COUNT)]


def by_torch(make, options):
    weights = torch.tensor(first_weights(), dtype=torch.float64, requires_grad=True)
    optimizer = make([weights], **options)
    for step in range(1, STEPS + 1):
        weights.grad = torch.tensor(gradients(step), dtype=torch.float64)
        optimizer.step()
    return weights.tolist()


def by_keras(make, options):
    weights = keras.Variable(first_weights(), dtype="float64")
    optimizer = make(**options)
    for step in range(1, STEPS + 1):
        optimizer.apply([keras.ops.convert_to_tensor(gradients(step), dtype="float64")], [weights])
    return weights.numpy().tolist()


keras.config.set_floatx("float64")
print(f"""// Printed by recorded_optimizers.py, with PyTorch {torch.__version__.split("+")[0]} and Keras {keras.__version__}: weights after {STEPS} steps, in float64.
#pragma once

#include <array>
#include <map>
#include <string>

namespace lockstep::optim {{

inline const std::map<std::string, std::array<double, {COUNT}>> kRecordedWeights = {{""")
for name, (make, options) in CASES.items():
    weights = by_keras(make, options) if make is keras.optimizers.Nadam else by_torch(make, options)
    numbers = ", ".join(f"{weight:.17g}" for weight in weights)
    print(f'{{"{name}", {{{{{numbers}}}}}}},')
print("""};

}  // namespace lockstep::optim""")
