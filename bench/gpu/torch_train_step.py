"""PyTorch's training steps and linear layers on one GPU, for scripts/bench-gpu: the networks and optimizers of bench/peers/train_step_ddp.py.

python3 bench/gpu/torch_train_step.py --model cifar10 --mode eager --rounds 5      one JSON line per round
python3 bench/gpu/torch_train_step.py --model cifar10 --mode compile --serve       one for each line on stdin, so that programs can take turns
python3 bench/gpu/torch_train_step.py --linear local3 128 2304 384                 the products of a linear layer

eager           channels_last (--memory-format contiguous: NCHW), fused optimizers
compile         the same; forward, loss and their gradients by torch.compile
compile-graphs  torch.compile(mode="reduce-overhead"), which replays CUDA graphs

Steps are queued one after the other, and the program waits for the device at the end of a round, as bench/train_step does. Products of less
than 50 us are replayed as a CUDA graph, as in bench/operators, because the host would need longer to queue them than they take.
"""

import argparse
import json
import pathlib
import sys
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import train_step_ddp  # noqa: E402  (its folder has no package)

WARM_UP = 10
# As in bench/operators.cpp: the duration of a round, the limit for small calls, and the number of these in a graph.
ROUND_SECONDS, SMALL_SECONDS, MOST_CALLS, MOST_IN_GRAPH = 0.002, 50e-6, 1000, 200


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_precision(precision):
    """Sets TF32 for products and for convolutions, because PyTorch's defaults for the two differ."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def make_step(flags, device):
    torch.manual_seed(0)
    is_channels_last = flags.memory_format == "channels_last"
    model, samples, labels = train_step_ddp.make(flags.model, tuned=is_channels_last)
    model, labels = model.to(device), labels.to(device)
    memory_format = {"memory_format": torch.channels_last} if is_channels_last and samples.dim() == 4 else {}
    samples = samples.to(device, **memory_format)
    optimizer = train_step_ddp.make_optimizer(flags.model, model.parameters(), tuned=True, on_gpu=device.type == "cuda")

    def loss_of(inputs, targets):
        with torch.autocast(device.type, torch.bfloat16, enabled=flags.precision == "bf16"):
            return nn.functional.cross_entropy(model(inputs), targets)

    if flags.mode != "eager":
        loss_of = torch.compile(loss_of, mode="reduce-overhead" if flags.mode == "compile-graphs" else None)

    def step():
        optimizer.zero_grad()
        loss_of(samples, labels).backward()
        optimizer.step()

    return step, len(samples)


def train(flags, device):
    step, batch = make_step(flags, device)
    for _ in range(WARM_UP if device.type == "cuda" else 2):
        step()
    wait(device)
    if flags.serve:
        print(json.dumps({"ready": flags.mode}), flush=True)
    for _ in sys.stdin if flags.serve else range(flags.rounds):
        start = time.perf_counter()
        for _ in range(flags.steps):
            step()
        queued = time.perf_counter() - start
        wait(device)
        seconds = (time.perf_counter() - start) / flags.steps
        line = {
            "peer": "pytorch-" + torch.__version__,
            "model": flags.model,
            "device": str(device),
            "mode": flags.mode,
            "precision": flags.precision,
            "memory_format": flags.memory_format,
            "step_ms": round(seconds * 1e3, 4),
            "queued_ms": round(queued / flags.steps * 1e3, 4),
            "samples_per_s": round(batch / seconds, 1),
        }
        print(json.dumps(line), flush=True)


def seconds_of(call, calls, device):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait(device)
    return (time.perf_counter() - start) / calls


def in_graph(call, calls):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


def median_seconds(call, rounds, device):
    seconds_of(call, 3, device)
    calls, in_call = 1, 1
    if device.type == "cuda":
        once = seconds_of(call, 10, device)
        calls = max(1, min(MOST_CALLS, int(ROUND_SECONDS / once)))
        if once < SMALL_SECONDS:
            in_call = min(calls, MOST_IN_GRAPH)
            call, calls = in_graph(call, in_call), -(-calls // in_call)
    seconds_of(call, calls, device)
    measured = sorted(seconds_of(call, calls, device) for _ in range(rounds))
    return measured[len(measured) // 2] / in_call


def linear(flags, device):
    name, (batch, inputs, outputs) = flags.linear[0], map(int, flags.linear[1:])
    x, weight, bias = torch.randn(batch, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    x, weight, bias = x.to(device), weight.to(device), bias.to(device)
    y = torch.randn(batch, outputs).to(device)
    products = {
        "forward": lambda: nn.functional.linear(x, weight, bias),
        "backward data": lambda: torch.mm(y, weight),
        "backward weights": lambda: torch.mm(y.t(), x),
    }
    for what, call in products.items():
        median = median_seconds(call, flags.rounds, device)
        gflops = 2 * batch * inputs * outputs / median * 1e-9
        line = {"operator": f"{name} {what}", "peer": "pytorch-" + torch.__version__, "precision": flags.precision}
        print(json.dumps({**line, "ms": median * 1e3, "gflops": gflops}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=train_step_ddp.MODELS, default="cifar10")
    parser.add_argument("--mode", choices=["eager", "compile", "compile-graphs"], default="eager")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--memory-format", choices=["channels_last", "contiguous"], default="channels_last", help="of images and filters")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help="run one round for each line on stdin")
    parser.add_argument("--linear", nargs=4, metavar=("NAME", "BATCH", "IN", "OUT"), help="time a linear layer instead")
    flags = parser.parse_args()
    device = torch.device(flags.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_train_step.py: PyTorch finds no GPU")
    choose_precision(flags.precision)
    if flags.linear:
        linear(flags, device)
    else:
        train(flags, device)


if __name__ == "__main__":
    main()
