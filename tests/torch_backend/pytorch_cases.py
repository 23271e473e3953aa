"""PyTorch's own cases of torch.distributed, on the backend "lockstep": torch/testing/_internal/distributed/distributed_test.py of the
installed wheel.

pytorch_cases.py [--ranks N] [unittest's options, for example -k barrier]       default: 3 ranks
pytorch_cases.py --exclusions                                                    prints the excluded cases with their reasons

Cases that need a GPU are skipped by their own decorators. Others ask for a backend by name ("Only MPI supports all_to_all"): they see one that
is Gloo as well as MPI, so that every case that can run on the CPU does.
"""

import importlib.util
import multiprocessing
import os
import sys
import tempfile
import types
import unittest

RANKS = sys.argv[sys.argv.index("--ranks") + 1] if "--ranks" in sys.argv else "3"
FOLDER = tempfile.mkdtemp(prefix="lockstep_pytorch_cases_")
os.environ.update(BACKEND="lockstep", INIT_METHOD=f"file://{FOLDER}/init", TEMP_DIR=FOLDER, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")

if importlib.util.find_spec("expecttest") is None:
    sys.exit("pytorch_cases.py: PyTorch's cases import expecttest, which its wheel does not bring: pip install expecttest")

import lockstep_torch  # noqa: E402, F401: registers the backend
import torch  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

# Cases that do not hold for this backend, each with the reason.
_BARRIER_TEXT = "compares Gloo's text; ours names the same ranks in other words (torch_groups_test.py)"
EXCLUSIONS = {
    "test_ddp_logging_data_cpu": "PyTorch's log calls every backend that is not its own 'custom'",
    "test_monitored_barrier_failure_order": _BARRIER_TEXT,
    "test_monitored_barrier_gloo": _BARRIER_TEXT,
    "test_monitored_barrier_gloo_rank_0_timeout": _BARRIER_TEXT,
    "test_monitored_barrier_gloo_subgroup": _BARRIER_TEXT,
    "test_monitored_barrier_wait_all_ranks": _BARRIER_TEXT,
    "test_sparse_all_reduce_sum": "sparse tensors are refused by name",
}


class _AlsoGlooAndMpi(str):
    """The backend's name as the decorators of the cases compare it."""

    def __hash__(self):
        return hash("gloo")  # in sets of names

    is_loading = True

    def upper(self):
        return "GLOO" if self.is_loading else "LOCKSTEP"  # decorators ask whether the backend was built

    def __eq__(self, other):
        return other in ("lockstep", "gloo", "mpi")

    def __ne__(self, other):
        return not self == other


def load_cases():
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    line = 'BACKEND = os.environ["BACKEND"]'
    assert source.count(f"\n{line}\n") == 1, f"{spec.origin} does not have the line {line} once: is it of another version?"
    module = types.ModuleType(name)
    module.__file__, module.__spec__, module._also = spec.origin, spec, _AlsoGlooAndMpi("lockstep")
    sys.modules[name] = module
    common_distributed.skip_if_small_worldsize = lambda case: case  # which needs eight ranks, except with MPI
    exec(compile(source.replace(line, "BACKEND = _also"), spec.origin, "exec"), module.__dict__)
    _AlsoGlooAndMpi.is_loading = False
    for backends in (module.PROFILING_SUPPORTED_BACKENDS, module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends.append("lockstep")
    return module


CASES = load_cases()


class PyTorchCases(CASES.TestDistBackend, CASES.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # they have imported all that they need


for case, reason in EXCLUSIONS.items():
    assert hasattr(PyTorchCases, case), f"{case} is excluded and does not exist"
    setattr(PyTorchCases, case, unittest.skip(reason)(lambda self: None))

if __name__ == "__main__":
    if "--exclusions" in sys.argv:
        for case, reason in EXCLUSIONS.items():
            print(f"{case}: {reason}")
        sys.exit()
    if "--ranks" in sys.argv:
        at = sys.argv.index("--ranks")
        del sys.argv[at : at + 2]
    torch.set_num_threads(1)
    import rank_cases

    rank_cases.main("__main__")
