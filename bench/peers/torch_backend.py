"""torch.distributed's backend "lockstep" next to Gloo, in one run on the same ranks: their rounds alternate. One JSON line a measurement.

PYTHONPATH=build/python torchrun --standalone --nproc-per-node 2 bench/peers/torch_backend.py [--sizes BYTES...] [--models mlp...]
    all_reduce      of an ordinary tensor of that many bytes, float32; the slowest rank's time
    step            DistributedDataParallel's, of train_step_ddp.py's models; default: mlp
Times are medians over all rounds; `ratio` is Gloo's time by ours, the median of the rounds' ratios. `least` is the shortest call, which a
busy machine disturbs less.
"""

import argparse
import json
import statistics
import time

import lockstep_torch  # noqa: F401: registers the backend
import torch
import torch.distributed as dist
from torch import nn

BACKENDS = ("gloo", "lockstep")


def slowest(seconds, group):
    """For each call the time of the slowest rank."""
    values = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX, group=group)
    return values.tolist()


def all_reduce_times(size, groups, rounds, calls):
    """For each backend the seconds of the calls, by round."""
    found = {name: [] for name in BACKENDS}
    data = {name: torch.empty(max(1, size // 4)) for name in BACKENDS}
    for _ in range(rounds):
        for name in BACKENDS:
            values, taken = data[name], []
            for i in range(calls + 2):
                values.fill_(1)
                dist.barrier(group=groups[name])
                begin = time.perf_counter()
                dist.all_reduce(values, group=groups[name])
                taken.append(time.perf_counter() - begin)
            found[name].append(slowest(taken[2:], groups["gloo"]))
    return found


def mlp():
    layers = [m for _ in range(4) for m in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 10)), torch.randn(64, 2048), torch.randint(0, 10, (64,))


def convolutions():
    layers = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 10)]
    return nn.Sequential(*layers), torch.randn(64, 3, 24, 24), torch.randint(0, 10, (64,))


def transformer():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 256, 10)), torch.randn(8, 64, 256), torch.randint(0, 10, (8,))


MODELS = {"mlp": mlp, "convolutions": convolutions, "transformer": transformer}


def step_times(name, groups, rounds, steps):
    found, trainings = {backend: [] for backend in BACKENDS}, {}
    for backend in BACKENDS:
        torch.manual_seed(0)
        model, inputs, labels = MODELS[name]()
        model = nn.parallel.DistributedDataParallel(model, process_group=groups[backend], gradient_as_bucket_view=True)
        trainings[backend] = model, torch.optim.SGD(model.parameters(), lr=0.01), inputs, labels
    for i in range(rounds + 1):
        for backend in BACKENDS:
            model, optimizer, inputs, labels = trainings[backend]
            taken = []
            for _ in range(steps):
                begin = time.perf_counter()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                taken.append(time.perf_counter() - begin)
            if i > 0:  # the first round has DDP's steps before its buckets are rebuilt
                found[backend].append(slowest(taken, groups["gloo"]))
    return found


def report(what, found):
    medians = {name: [statistics.median(times) for times in found[name]] for name in BACKENDS}
    least = {name: min(min(times) for times in found[name]) for name in BACKENDS}
    ratios = [gloo / ours for gloo, ours in zip(medians["gloo"], medians["lockstep"])]
    line = {**what, "ranks": dist.get_world_size()}
    line.update({f"{name}_us": round(statistics.median(medians[name]) * 1e6, 1) for name in BACKENDS})
    line.update(ratio=round(statistics.median(ratios), 2), lowest=round(min(ratios), 2), highest=round(max(ratios), 2))
    line.update({f"{name}_least_us": round(least[name] * 1e6, 1) for name in BACKENDS})
    line.update(least_ratio=round(least["gloo"] / least["lockstep"], 2))
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--sizes", type=int, nargs="*", default=[1024, 65536, 1 << 20, 25 << 20])
    cli.add_argument("--models", nargs="*", default=["mlp"], choices=MODELS)
    cli.add_argument("--rounds", type=int, default=7)
    cli.add_argument("--steps", type=int, default=8)
    args = cli.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "lockstep": dist.new_group(backend="lockstep")}
    for size in args.sizes:
        calls = min(max((64 << 20) // max(size, 4096), 5), 500)
        report({"call": "all_reduce", "bytes": size}, all_reduce_times(size, groups, args.rounds, calls))
    for model in args.models:
        report({"call": "step", "model": model}, step_times(model, groups, args.rounds, args.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
