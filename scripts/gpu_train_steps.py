"""The part train_step of bench-gpu: our training steps and PyTorch's. Each contestant is a process that makes a round on request. One process
at a time compiles and tunes, since libraries that measure themselves on a GPU that others load choose badly. The contestants of a row then stay
until their rounds, which alternate, are over, and end before the next row begins."""

import statistics
import time

import gpu_programs
from gpu_programs import Failed

# PyTorch's name for it: the type in which our layers compute, and whether float32 products may use TF32.
PRECISIONS = {"float32": ("float32", "0"), "tf32": ("float32", "1"), "bf16": ("bfloat16", "0")}
# The models of images: their memory format is PyTorch's choice too. Its 16-bit kernels are all made for channels_last.
OF_IMAGES = {"cifar10", "cifar10-nolrn", "resnet20"}
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


def is_ours(name):
    return name.startswith("lockstep")


def contestants_of(bench, model, precision):
    """By name, the command and the environment of each contestant, in the order in which they start: ours first, since no row is without them."""
    flags = bench.flags
    dtype, tf32 = PRECISIONS[precision]
    command = [bench.programs.path("train_step"), "--model", model, "--dtype", dtype, "--device", flags.device, "--steps", flags.steps, "--json",
               *(["--warm-up", 0] if flags.tiny else [])]
    environment = {**bench.programs.environment, "LOCKSTEP_TF32": tf32}
    planned = {"lockstep": (command, environment)}
    if flags.device != "cpu":
        planned["lockstep graph"] = ([*command, "--graph"], environment)
    formats = ["channels_last", *(["contiguous"] if model in OF_IMAGES and precision != "bf16" else [])]
    for mode in bench.torch_modes:  # PyTorch brings its own CUDA libraries, which must come before ours
        for memory_format in formats:
            script = bench.torch_script("--model", model, "--mode", mode, "--precision", precision, "--memory-format", memory_format,
                                        "--steps", flags.steps)
            planned[f"pytorch {mode}{' contiguous' if memory_format == 'contiguous' else ''}"] = (script, None)
    return planned


class Row:
    """The contestants of one model in one precision. The missing ones have a reason: without them nobody knows PyTorch's best."""

    def __init__(self, bench, model, precision):
        self.bench, self.model, self.precision = bench, model, precision
        self.servers, self.rounds = {}, {}
        self.began, self.needed_s = time.monotonic(), 0  # needed_s: until the end of the first round
        self.missing = {"pytorch": bench.why_no_torch} if bench.why_no_torch else {}

    def name(self):
        return f"{self.model} {self.precision}"

    def leave_out(self, contestant, reason):
        self.missing[contestant] = str(reason)
        self.bench.skip(f"train_step {self.name()}, {contestant}", reason)

    def start(self):
        """Starts one contestant after the other, each when the one before has answered or has ended. One of PyTorch's that never answers takes at
        most half of the time that is left."""
        for name, (command, environment) in contestants_of(self.bench, self.model, self.precision).items():
            if not is_ours(name) and not self.has_ours():
                break
            server = Server(self.bench, command, environment)
            self.servers[name] = server
            try:
                server.read(min(START_S, self.bench.left() / (1 if is_ours(name) else 2)))
            except Failed as reason:
                self.servers.pop(name).close()
                self.leave_out(name, reason)
        if not self.has_ours():
            raise Failed("no run of lockstep has started")

    def has_ours(self):
        return any(is_ours(name) for name in self.servers)

    def measure(self, rows_left):
        """The contestants take turns; after the first round only while the later rows, this one included, have time."""
        self.rounds = {name: [] for name in sorted(self.servers)}
        started_s, until = time.monotonic() - self.began, None
        for made in range(self.bench.flags.rounds):
            if made == 1:
                self.needed_s = time.monotonic() - self.began
                until = time.monotonic() + rounds_s(self.bench.left(), started_s, self.needed_s, rows_left)
            if made > 0 and time.monotonic() + self.needed_s - started_s > until:
                break
            for name in list(self.rounds):
                try:
                    self.rounds[name].append(self.servers[name].round())
                except Failed as reason:  # the other contestants' rounds are valid
                    self.servers.pop(name).close()
                    self.rounds.pop(name)
                    self.leave_out(name, f"round {made + 1}: {reason}")
        self.needed_s = self.needed_s or time.monotonic() - self.began
        if not self.has_ours():
            raise Failed("no run of lockstep made all its rounds")

    def close(self):
        for server in self.servers.values():
            server.close()


def train_step(bench):
    """By model and precision: the median over each contestant's rounds. Rows that do not fit are listed: the quickest row so far, without its
    later rounds, shows how much time one needs."""
    flags = bench.flags
    wanted = [(model, precision) for precision in flags.precisions for model in flags.models]
    quickest_s = 0
    for made, (model, precision) in enumerate(wanted):
        left_s = bench.until_of_part - time.monotonic()
        if left_s < max(quickest_s, 1):
            bench.skip(f"train_step {model} {precision}", f"{max(left_s, 0):.0f} s are left of its share of --time-limit {flags.time_limit:.0f}, and "
                       f"the quickest row took {quickest_s:.0f} s")
            continue
        row = Row(bench, model, precision)
        try:
            row.start()
            row.measure(len(wanted) - made)
            quickest_s = min(quickest_s or row.needed_s, row.needed_s)
            bench.add("train_step", summary_of(row))
            print_train_step(bench.document["train_step"][-1])
        except Failed as reason:
            bench.skip(f"train_step {row.name()}", reason)
        finally:
            row.close()


def rounds_s(left_s, started_s, needed_s, rows_left):
    """The time for a row's further rounds: its share of what remains if every later row needs as much for its first one. It is at least a quarter
    of the row's start: a row of one round says little."""
    return max((left_s - (rows_left - 1) * needed_s) / rows_left, started_s / 4)


def summary_of(row):
    """The ratio is null if a contestant is missing, because the best of those that are left may not be PyTorch's best."""
    summary = {"model": row.model, "precision": row.precision, "contestants": {}, "missing": row.missing, "times_pytorchs_best": None}
    for name, measured in row.rounds.items():
        figures = {key: statistics.median(each[key] for each in measured)
                   for key in ("step_ms", "host_ms", "latency_ms", "host_percent", "samples_per_s") if key in measured[0]}
        summary["contestants"][name] = {**figures, "rounds_step_ms": [each["step_ms"] for each in measured]}
    ours = min(each["step_ms"] for name, each in summary["contestants"].items() if is_ours(name))
    theirs = [each["step_ms"] for name, each in summary["contestants"].items() if not is_ours(name)]
    if theirs and not row.missing:
        summary["times_pytorchs_best"] = round(min(theirs) / ours, 3)
    return summary


def print_train_step(summary):
    what = f"{summary['model']:<15} {summary['precision']:<8}"
    for name, each in summary["contestants"].items():
        host = f", host {each['host_percent']:.1f} %" if "host_percent" in each else ""
        print(f"{what} {name:<33} {each['step_ms']:>10.4f} ms{host}", flush=True)
    if summary["missing"]:
        print(f"{what} no ratio to PyTorch's best without {', '.join(summary['missing'])}", flush=True)
