"""Prints recorded_cross_entropy.h: torch.nn.functional.cross_entropy with its options, and its gradients.

python tests/autograd/recorded_cross_entropy.py > tests/autograd/recorded_cross_entropy.h    (pip install torch)
"""

import torch

LOGITS = [[1.5, -0.5, 0.25], [0.0, 2.0, -1.0], [-2.0, 0.5, 1.0], [0.75, 0.75, -3.0]]
LABELS = [2, 1, -100, 0]
SOFT = [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.25, 0.25, 0.25], [0.9, 0.1, 0.0]]
WEIGHT = [0.5, 2.0, 3.0]
REDUCTIONS = {"mean": "kMean", "sum": "kSum", "none": "kNone"}


def row(soft, weighted, smoothing, reduction):
    logits = torch.tensor(LOGITS, requires_grad=True)
    targets = torch.tensor(SOFT, requires_grad=True) if soft else torch.tensor(LABELS)
    loss = torch.nn.functional.cross_entropy(logits, targets, weight=torch.tensor(WEIGHT) if weighted else None,
                                             label_smoothing=smoothing, reduction=reduction)
    factors = torch.arange(1, 1 + loss.numel()).view(loss.shape)  # no two rows' gradients are weighed alike
    (loss * factors).sum().backward()
    numbers = [loss.detach(), logits.grad, targets.grad if soft else torch.tensor([])]
    texts = ["{" + ", ".join("%.9e" % number for number in each.flatten()) + "}" for each in numbers]
    flags = ["true" if flag else "false" for flag in (soft, weighted)]
    return "    {%s, %sF, Reduction::%s, %s}," % (", ".join(flags), repr(smoothing), REDUCTIONS[reduction], ", ".join(texts))


print(f"""// Printed by recorded_cross_entropy.py, with PyTorch {torch.__version__.split("a")[0]}: losses of the logits, labels and soft
// targets there, the gradients of the sum of row n's loss times n + 1 by the logits and, where there are some, by the soft targets.
// clang-format off
#pragma once

#include <vector>

#include "lockstep/core/operator_shapes.h"

namespace lockstep {{

struct RecordedCrossEntropy {{
  bool soft, weighted;
  float smoothing;
  Reduction reduction;
  std::vector<double> losses, logits_grad, soft_grad;
}};

inline const std::vector<RecordedCrossEntropy>& recorded_cross_entropies() {{
  static const std::vector<RecordedCrossEntropy> all = {{""")
for soft in (False, True):
    for weighted in (False, True):
        for smoothing in (0.0, 0.1):
            for reduction in REDUCTIONS:
                print(row(soft, weighted, smoothing, reduction))
print("""  };
  return all;
}

}  // namespace lockstep""")
