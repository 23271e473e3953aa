"""As much of PyTorch as bench/gpu/torch_train_step.py needs to run through without it: products take their FLOP in nanoseconds of a clock
that is made up, replayed ones nothing but that; called one by one they take 30 us more, as Python needs to queue them. Names that are not
here are mocks. The optimizer and the graphs that are made are told on stderr."""

import sys
import time
from unittest import mock

__version__ = "fake"
HOST_NS = 30_000
now_ns = 0
time.perf_counter = lambda: now_ns * 1e-9


def __getattr__(name):
    return mock.MagicMock(name=name)


def pass_time(ns):
    global now_ns
    now_ns += ns


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def __len__(self):
        return self.shape[0]

    def dim(self):
        return len(self.shape)

    def to(self, *_, **__):
        return self

    def contiguous(self, **_):
        return self

    def t(self):
        return Tensor(*reversed(self.shape))


def randn(*shape):
    return Tensor(*shape)


def randint(_least, _end, shape):
    return Tensor(*shape)


class Device:
    def __init__(self, name):
        self.type = name.split(":")[0]

    def __str__(self):
        return self.type


device = Device


def multiply(rows, depth, columns):
    flop = rows * depth * columns
    if cuda.recorded is not None:
        cuda.recorded.append(flop)
    else:
        pass_time(max(HOST_NS, flop))


def mm(a, b):
    multiply(a.shape[0], a.shape[1], b.shape[1])


class Cuda:
    """torch.cuda: what is called while a graph is recorded does not run."""

    recorded = None

    def is_available(self):
        return True

    def synchronize(self, _device):
        pass

    class CUDAGraph:
        def replay(self):
            pass_time(sum(self.calls))

    class graph:
        def __init__(self, made):
            self.made = made

        def __enter__(self):
            cuda.recorded = []

        def __exit__(self, *_):
            self.made.calls, cuda.recorded = cuda.recorded, None
            print(f"a graph of {len(self.made.calls)} calls", file=sys.stderr)


class Module:
    def __init__(self, *_, **__):
        pass

    def __call__(self, *_):
        pass

    def to(self, *_, **__):
        return self

    def parameters(self):
        return []


class Layers:
    """torch.nn."""

    Module = Module
    functional = mock.MagicMock()

    def __getattr__(self, name):
        return Module


class Optimizers:
    """torch.optim."""

    def __getattr__(self, name):
        def make(_parameters, **options):
            print(name, *(f"{key}={value}" for key, value in sorted(options.items())), file=sys.stderr)
            return mock.MagicMock()

        return make


cuda, nn, optim = Cuda(), Layers(), Optimizers()


def cross_entropy(_outputs, _targets):
    pass_time(1_000_000)
    return mock.MagicMock()


nn.functional.cross_entropy = cross_entropy
nn.functional.linear = lambda x, weight, bias: multiply(x.shape[0], x.shape[1], weight.shape[0])
distributed = sys.modules["torch.distributed"] = mock.MagicMock()
