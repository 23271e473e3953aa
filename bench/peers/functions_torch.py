"""Times the functions of bench/functions in PyTorch, in turn with build/bench/functions, one thread, forward and backward.

functions_torch.py --build build --rounds 3

Prints a line for each function: our time, PyTorch's, and PyTorch's divided by ours. The least of all rounds counts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

import torch
import torch.nn.functional as F

ROUND_SECONDS = 0.05


def leaf(*shape):
    return (torch.rand(*shape) * 0.9 + 0.1).requires_grad_()


def functions():
    x, y = leaf(1024, 1024), leaf(1024, 1024)
    rows, places = torch.randint(0, 1024, (1024,)), torch.randint(0, 1024, (1024, 1024))
    a, b = leaf(16, 128, 96), leaf(16, 96, 64)
    # As after a linear layer: (N, T, H, D) in memory.
    q, k, v = (leaf(4, 256, 8, 64) for _ in range(3))
    lower = torch.ones(256, 256).tril().bool()
    added = torch.zeros(256, 256).masked_fill(~lower, float("-inf"))
    scores, labels = leaf(16, 50, 32), torch.randint(1, 32, (16, 10))
    times, lengths = torch.full((16,), 50), torch.full((16,), 10)

    def attention(**options):
        def call():
            heads = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), **options)
            return heads.transpose(1, 2).contiguous()

        return [q, k, v], call

    def recurrent(kind, samples, backward=True):
        layer = kind(256, 256, batch_first=True)
        series = leaf(samples, 50, 256)
        return [series, *layer.parameters()] if backward else [], lambda: layer(series)[0]

    return {
        "var": ([x], lambda: x.var(1)),
        "var_columns": ([x], lambda: x.var(0)),
        "std": ([x], lambda: x.std(1)),
        "norm": ([x], lambda: x.norm(2, 1)),
        "norm_1": ([x], lambda: x.norm(1, 1)),
        "prod": ([x], lambda: x.prod(1)),
        "logsumexp": ([x], lambda: x.logsumexp(1)),
        "cumsum": ([x], lambda: x.cumsum(1)),
        "sort": ([x], lambda: x.sort().values),
        "topk": ([x], lambda: x.topk(10).values),
        "flip": ([x], lambda: x.flip(1)),
        "roll": ([x], lambda: x.roll(100, 1)),
        "clamp": ([x], lambda: x.clamp(0.3, 0.7)),
        "maximum": ([x, y], lambda: torch.maximum(x, y)),
        "sin": ([x], lambda: x.sin()),
        "erf": ([x], lambda: x.erf()),
        "pow": ([x, y], lambda: x.pow(y)),
        "tril": ([x], lambda: x.tril()),
        "index_select": ([x], lambda: x.index_select(0, rows)),
        "gather": ([x], lambda: x.gather(1, places)),
        "scatter_add": ([x, y], lambda: x.scatter_add(1, places, y)),
        "einsum_product": ([a, b], lambda: torch.einsum("bij,bjk->bik", a, b)),
        "einsum_outer": ([x, y], lambda: torch.einsum("ij,ij->i", x, y)),
        "attention": attention(),
        "attention_causal": attention(is_causal=True),
        "attention_bool_mask": attention(attn_mask=lower),
        "attention_float_mask": attention(attn_mask=added),
        "ctc_loss": ([scores], lambda: F.ctc_loss(scores.log_softmax(2).transpose(0, 1), labels, times, lengths)),
        "lstm": recurrent(torch.nn.LSTM, 16),
        "gru": recurrent(torch.nn.GRU, 16),
        "lstm_sample": recurrent(torch.nn.LSTM, 1, backward=False),
        "gru_sample": recurrent(torch.nn.GRU, 1, backward=False),
    }


def round_ms(leaves, call):
    gradient = torch.rand_like(call())  # in memory, as in a model
    begin, calls = time.perf_counter(), 0
    while True:
        for each in leaves:
            each.grad = None
        with torch.set_grad_enabled(bool(leaves)):
            result = call()
        if leaves:
            result.backward(gradient)
        calls += 1
        took = time.perf_counter() - begin
        if took >= ROUND_SECONDS:
            return took * 1e3 / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    program = given.build / "bench/functions"
    if not program.exists():
        raise SystemExit(f"functions_torch.py: {program} does not exist: build it, or name another --build")
    all_functions, ours, theirs = functions(), {}, {}
    for name, (leaves, call) in all_functions.items():
        for _ in range(given.rounds):
            command = [program, "--only", name, "--rounds", "2"]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout)
            ours[name] = min(ours.get(name, row[name]), row[name])
            round_ms(leaves, call)
            theirs[name] = min([theirs.get(name, float("inf")), round_ms(leaves, call), round_ms(leaves, call)])
        print(f"{name:22} {ours[name]:9.3f} ms {theirs[name]:9.3f} ms {theirs[name] / ours[name]:6.2f}", flush=True)


main()
