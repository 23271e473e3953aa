"""The part train_step of bench-gpu: our training steps and PyTorch's. Each contestant is a process that makes a round on request."""

import contextlib
import statistics
import time

import gpu_programs
from gpu_programs import Failed

# PyTorch's name for it: the type in which our layers compute, and whether float32 products may use TF32.
PRECISIONS = {"float32": ("float32", "0"), "tf32": ("float32", "1"), "bf16": ("bfloat16", "0")}
# PyTorch compiles before its first answer.
START_S, ROUND_S = 180, 60


class Server:
    """A process that makes one round on each request: compiling and tuning take long, and are done once."""

    def __init__(self, bench, command, environment=None):
        self.bench = bench
        self.process = gpu_programs.Process([*command, "--serve"], max(1.0, bench.until - time.monotonic()), environment, answers=True)

    def read(self, within_s):
        while (line := self.process.line(within_s)) is not None:
            if line.startswith("{"):
                return gpu_programs.row_of(line, self.process)
        name = self.process.command[0]
        if self.process.is_out_of_time:
            raise Failed(f"{name} gave no answer in time ({within_s:.0f} s, --time-limit {self.bench.flags.time_limit:.0f})")
        code = self.process.code(within_s=10)
        raise Failed(f"{name} ended with {code}, see above" if code is not None else f"{name} closed its output and did not end")

    def round(self):
        try:
            self.process.say("go")
        except BrokenPipeError:
            pass  # read() reports how it ended
        return self.read(ROUND_S)

    def close(self):
        self.process.end()


def contestants_of(bench, model, precision):
    """Starts the contestants; returns name and process of each. PyTorch's compile at the same time."""
    flags = bench.flags
    dtype, tf32 = PRECISIONS[precision]
    command = [bench.programs.path("train_step"), "--model", model, "--dtype", dtype, "--device", flags.device, "--steps", flags.steps, "--json",
               *(["--warm-up", 0] if flags.tiny else [])]
    environment = {**bench.programs.environment, "LOCKSTEP_TF32": tf32}
    started = {}
    try:
        for mode in bench.torch_modes:  # PyTorch brings its own CUDA libraries, which must come before ours
            started[f"pytorch {mode}"] = Server(
                bench, bench.torch_script("--model", model, "--mode", mode, "--precision", precision, "--steps", flags.steps))
        started["lockstep"] = Server(bench, command, environment)
        if flags.device != "cpu":
            started["lockstep graph"] = Server(bench, [*command, "--graph"], environment)
    except BaseException:
        for server in started.values():
            server.close()
        raise
    return started


def answers(bench, server, what, until):
    try:
        server.read(max(0.1, until - time.monotonic()))
        return True
    except Failed as reason:
        bench.skip(f"train_step {what}", reason)
        return False


def ready(bench, waiting, precision, began, share_s):
    """For each model, the contestants that have answered; the others are listed, and have ended. None is timed while another one compiles or
    tunes on the same GPU. PyTorch's get half of the share of time; ours, which every row needs, get all of it, and rounds are omitted."""
    chosen = {model: {} for model in waiting}
    for of_ours, until in ((False, began + min(START_S, share_s / 2)), (True, began + share_s)):
        for model, servers in waiting.items():
            for name, server in servers.items():
                if name.startswith("lockstep") == of_ours and answers(bench, server, f"{model} {precision}, {name}", until):
                    chosen[model][name] = server
    return {model: dict(sorted(servers.items())) for model, servers in chosen.items()}


def train_step(bench):
    """By model and precision: the median over each contestant's rounds. The models of a precision are compiled together."""
    flags = bench.flags
    rows_left = len(flags.precisions) * len(flags.models)
    for precision in flags.precisions:
        began, share_s = time.monotonic(), bench.left() * len(flags.models) / rows_left
        with contextlib.ExitStack() as stack:
            waiting = {}
            for model in flags.models:
                waiting[model] = contestants_of(bench, model, precision)
                for server in waiting[model].values():
                    stack.callback(server.close)
            for model, chosen in ready(bench, waiting, precision, began, share_s).items():
                try:
                    measure_row(bench, model, precision, chosen, rows_left)
                except Failed as reason:
                    bench.skip(f"train_step {model} {precision}", reason)
                rows_left -= 1


def measure_row(bench, model, precision, chosen, rows_left):
    until = time.monotonic() + bench.left() / rows_left / 2  # the other half is for contestants that have yet to be compiled
    rows = {name: [] for name in chosen}
    for made in range(bench.flags.rounds):
        if made > 0 and time.monotonic() > until:
            break
        for name, server in list(chosen.items()):
            try:
                rows[name].append(server.round())
            except Failed as reason:  # the other contestants' rounds are valid
                bench.skip(f"train_step {model} {precision}, {name}", f"round {made + 1}: {reason}")
                chosen.pop(name).close()
                rows.pop(name)
    if not any(name.startswith("lockstep") for name in chosen):
        raise Failed("no run of lockstep made all its rounds")
    for server in chosen.values():
        server.close()
    bench.add("train_step", summary_of(model, precision, rows))
    print_train_step(bench.document["train_step"][-1])


def summary_of(model, precision, rows):
    summary = {"model": model, "precision": precision, "contestants": {}}
    for name, measured in rows.items():
        figures = {key: statistics.median(row[key] for row in measured)
                   for key in ("step_ms", "host_ms", "latency_ms", "host_percent", "samples_per_s") if key in measured[0]}
        summary["contestants"][name] = {**figures, "rounds_step_ms": [row["step_ms"] for row in measured]}
    ours = min(each["step_ms"] for name, each in summary["contestants"].items() if name.startswith("lockstep"))
    theirs = [each["step_ms"] for name, each in summary["contestants"].items() if name.startswith("pytorch")]
    if theirs:
        summary["times_pytorchs_best"] = round(min(theirs) / ours, 3)
    return summary


def print_train_step(summary):
    for name, each in summary["contestants"].items():
        host = f", host {each['host_percent']:.1f} %" if "host_percent" in each else ""
        print(f"{summary['model']:<15} {summary['precision']:<8} {name:<24} {each['step_ms']:>10.4f} ms{host}", flush=True)
