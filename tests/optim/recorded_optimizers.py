"""Prints, for each case of every_optimizer.cpp, the weights after 100 steps of PyTorch's or Keras' optimizer in float64.

KERAS_BACKEND=torch python tests/optim/recorded_optimizers.py      (pip install torch keras)

The first weights and the gradients are fractions of powers of two, exact in float32: formulas_test.cpp makes the same ones.
"""

import pathlib
import re

import keras
import torch

STEPS, COUNT = 100, 8
CASES = re.findall(r'{"(\w+)",\s*"((?:torch|keras)\.[^"]*)"', pathlib.Path(__file__).with_name("every_optimizer.cpp").read_text())


def first_weights():
    return [(1 if i % 2 == 0 else -1) * (8 + i) / 4 for i in range(COUNT)]


def gradients(step):
    return [((13 * step + 29 * i) % 64 - 24) / 64 / 8 ** (i % 4) for i in range(COUNT)]


def by_torch(call):
    weights = torch.tensor(first_weights(), dtype=torch.float64, requires_grad=True)
    optimizer = eval(call, {"torch": torch, "w": [weights]})
    for step in range(1, STEPS + 1):
        weights.grad = torch.tensor(gradients(step), dtype=torch.float64)
        optimizer.step()
    return weights.tolist()


def by_keras(call):
    weights = keras.Variable(first_weights(), dtype="float64")
    optimizer = eval(call, {"keras": keras})
    for step in range(1, STEPS + 1):
        optimizer.apply([keras.ops.convert_to_tensor(gradients(step), dtype="float64")], [weights])
    return weights.numpy().tolist()


keras.config.set_floatx("float64")
print(f"PyTorch {torch.__version__.split('+')[0]}, Keras {keras.__version__}")
for name, call in CASES:
    weights = by_keras(call) if call.startswith("keras") else by_torch(call)
    print(f"{name}: {{{', '.join(f'{weight:.17g}' for weight in weights)}}}")
