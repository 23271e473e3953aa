"""Prints recorded_losses.h: losses of torch.nn.functional with their options, and the gradients of their inputs.

python tests/autograd/recorded_losses.py > tests/autograd/recorded_losses.h    (pip install torch)
"""

import torch
import torch.nn.functional as F


def wave(*shape, phase=0.0):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32) * 1.7 + phase).mul(1.5).view(shape)


def log_probabilities(*shape, phase=0.0):
    return wave(*shape, phase=phase).log_softmax(-1)


def of_ctc(logits, **options):
    targets = torch.tensor([[1, 1, 2], [3, 2, 0], [1, 2, 3]])
    return F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), targets, torch.tensor([6, 4, 2]), torch.tensor([3, 2, 3]), **options)


SIGNS = torch.tensor([1, -1, 1, -1])
X, Y, Z = wave(4, 3), wave(4, 3, phase=1.0), wave(4, 3, phase=2.5)
P = wave(4, 3, phase=2.5).softmax(-1)
CASES = {}
for reduction in ("mean", "sum", "none"):
    CASES[f"huber_{reduction}"] = ((X, Y), lambda x, y, r=reduction: F.huber_loss(x, y, delta=0.7, reduction=r))
    CASES[f"smooth_l1_{reduction}"] = ((X, Y), lambda x, y, r=reduction: F.smooth_l1_loss(x, y, beta=0.7, reduction=r))
    CASES[f"kl_div_{reduction}"] = ((log_probabilities(4, 3), P), lambda x, y, r=reduction: F.kl_div(x, y, reduction=r))
    CASES[f"triplet_{reduction}"] = ((X, Y, Z), lambda a, p, n, r=reduction: F.triplet_margin_loss(a, p, n, margin=2.0, reduction=r))
    CASES[f"cosine_{reduction}"] = ((X, Z), lambda a, b, r=reduction: F.cosine_embedding_loss(a, b, SIGNS, margin=-0.5, reduction=r))
    CASES[f"ctc_{reduction}"] = ((wave(3, 6, 4),), lambda x, r=reduction: of_ctc(x, reduction=r, zero_infinity=True))
CASES["kl_div_batchmean"] = ((log_probabilities(4, 3), P), lambda x, y: F.kl_div(x, y, reduction="batchmean"))
CASES["kl_div_log"] = ((log_probabilities(4, 3), log_probabilities(4, 3, phase=2.5)), lambda x, y: F.kl_div(x, y, reduction="sum", log_target=True))
CASES["triplet_swap"] = ((X, Y, Z), lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=2.0, p=1, swap=True))

print(f"""// Printed by recorded_losses.py, with PyTorch {torch.__version__.split("+")[0]}: inputs, losses, and the gradients of the sum of loss n times n + 1.
// clang-format off
#pragma once

#include <string>
#include <vector>

namespace lockstep {{

struct RecordedLoss {{
  std::string name;
  std::vector<std::vector<float>> inputs;
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients;
}};

inline const std::vector<RecordedLoss>& recorded_losses() {{
  static const std::vector<RecordedLoss> all = {{""")


def numbers(tensor):
    return "{" + ", ".join("%.8e" % number for number in tensor.detach().flatten()) + "}"


for name, (inputs, call) in CASES.items():
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    loss = call(*leaves)
    (loss * torch.arange(1, 1 + loss.numel()).view(loss.shape)).sum().backward()
    print(f'    {{"{name}", {{{", ".join(numbers(leaf) for leaf in leaves)}}}, {numbers(loss)},')
    print(f'     {{{", ".join(numbers(leaf.grad) for leaf in leaves)}}}}},')
print("""  };
  return all;
}

}  // namespace lockstep""")
