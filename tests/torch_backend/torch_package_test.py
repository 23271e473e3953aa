"""The package lockstep_torch: what its import and its name give, and programs that torchrun and lockrun start."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import lockstep_torch
import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Raises, init, on_ranks


class Imports(unittest.TestCase):
    def test_another_version(self):
        built_for, check = lockstep_torch._built_for, lockstep_torch._check_build
        for what, value, *parts in [
            ("TORCH_VERSION", "2.14.0", "built for PyTorch 2.14.0", f"PyTorch {torch.__version__}", "torch==2.14.0"),
            ("EXTENSION_SUFFIX", ".cpython-39-riscv.so", "*.cpython-39-riscv.so", sys.version.split()[0], f"scripts/wheel --python {sys.executable}"),
            ("CXX11_ABI", False, "_GLIBCXX_USE_CXX11_ABI is 0", "has 1", "scripts/wheel"),
        ]:
            with mock.patch.object(built_for, what, value), Raises(ImportError, *parts):
                check()

    def test_the_extension_of_another_version_is_not_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            package = shutil.copytree(os.path.dirname(lockstep_torch.__file__), f"{folder}/lockstep_torch", ignore=shutil.ignore_patterns("*.so", "*.p", "__pycache__"))
            with open(f"{package}/_built_for.py", "a", encoding="utf-8") as file:
                file.write('TORCH_VERSION = "2.14.0"\n')
            with open(f"{package}/_C.py", "w", encoding="utf-8") as file:
                file.write('print("loaded")\n')
            done = subprocess.run(
                [sys.executable, "-c", "import lockstep_torch"],
                env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, timeout=rank_cases.LONGEST, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("ImportError: lockstep_torch: this wheel was built for PyTorch 2.14.0, and PyTorch 2.15.0", done.stderr)
            self.assertNotIn("loaded", done.stdout)

    def test_without_an_import(self):
        """PyTorch finds the backend by the wheel's entry point."""
        if not importlib.metadata.entry_points(group="torch.distributed.backends", name="lockstep"):
            self.skipTest("lockstep_torch is not installed from a wheel")
        program = "import torch.distributed as dist; dist.init_process_group('lockstep', store=dist.HashStore(), rank=0, world_size=1); dist.barrier(); print(dist.get_backend())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=rank_cases.LONGEST, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "lockstep\n"), done.stderr)


    def test_flight_recorder_of_pytorch(self):
        """It is attached to groups where a variable asks for it."""
        recording = dist.distributed_c10d._FR_SELF_RECORDING_BACKENDS
        try:
            for variables, expected in [({"TORCH_FR_BUFFER_SIZE": "100"}, False), ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, False), ({}, True)]:
                recording.discard("lockstep")
                with mock.patch.dict(os.environ, variables):
                    lockstep_torch.register()
                self.assertEqual("lockstep" in recording, expected, variables)
        finally:
            recording.add("lockstep")


class DevicesOfGroups(unittest.TestCase):
    """There is no GPU here: what PyTorch asks for is replaced, and Gloo, which makes groups without one, has NCCL's place."""

    def devices(self, backend, gpus, nccl):
        with mock.patch.object(torch.cuda, "device_count", lambda: gpus), mock.patch.object(dist, "is_nccl_available", lambda: nccl):
            return dist.distributed_c10d.BackendConfig(backend).get_device_backend_map()

    def test_who_serves_cuda(self):
        self.assertEqual(self.devices("lockstep", gpus=2, nccl=True), {"cpu": "lockstep", "cuda": "nccl"})
        self.assertEqual(self.devices("lockstep", gpus=2, nccl=False), {"cpu": "lockstep", "cuda": "lockstep"})  # refused, see test_refused_by_name
        self.assertEqual(self.devices("lockstep", gpus=0, nccl=True), {"cpu": "lockstep", "cuda": "lockstep"})
        self.assertEqual(self.devices("cpu:lockstep", gpus=2, nccl=True), {"cpu": "lockstep"})
        self.assertEqual(self.devices("cpu:lockstep,cuda:gloo", gpus=2, nccl=True), {"cpu": "lockstep", "cuda": "gloo"})
        self.assertEqual(self.devices("nccl", gpus=2, nccl=True), {"cuda": "nccl"})
        self.assertEqual(self.devices("gloo", gpus=2, nccl=True), {"cpu": "gloo", "cuda": "gloo"})

    @on_ranks(2, joins=False)
    def test_two_backends_of_one_name(rank, ranks, folder):
        dist.Backend._ensure_backend_registered("gloo")
        plugins = dist.Backend._plugins
        with mock.patch.object(torch.cuda, "device_count", lambda: 1), mock.patch.dict(plugins, NCCL=plugins["GLOO"]), mock.patch.object(dist, "is_nccl_available", lambda: True):
            init(rank, ranks, folder)
            for group in [dist.group.WORLD, dist.new_group([0, 1])]:
                names = [group._get_backend(torch.device(device)).name() for device in ("cpu", "cuda")]
                assert names == ["lockstep", "gloo"], names
                data = torch.ones(2)
                dist.all_reduce(data, group=group)
                dist.barrier(group=group)
                assert data[0] == 2
            assert dist.get_backend() == "lockstep"
            dist.destroy_process_group()

    @on_ranks(2, joins=False)
    def test_devices_by_name(rank, ranks, folder):
        init(rank, ranks, folder, backend="cpu:lockstep,cuda:gloo")
        data = torch.ones(2)
        dist.all_reduce(data)
        assert data[0] == 2 and dist.group.WORLD._get_backend(torch.device("cpu")).name() == "lockstep"
        dist.barrier()


def as_a_rank():
    """A program as users start it: torchrun's and lockrun's variables say who it is."""
    dist.init_process_group("lockstep")
    data = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(data)
    assert data[0] == sum(range(dist.get_world_size()))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} has the sum", flush=True)


class Launchers(unittest.TestCase):
    def expect_ranks(self, *launcher):
        command = [*launcher, __file__, "--as-a-rank"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=rank_cases.LONGEST, check=False)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 has the sum", done.stdout, done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_torchrun(self):
        self.expect_ranks(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    def test_lockrun(self):
        lockrun = os.environ.get("LOCKRUN")
        if not lockrun:
            self.skipTest("LOCKRUN does not name lockrun")
        self.expect_ranks(lockrun, "--no-fold", "-n", "2", sys.executable)


if __name__ == "__main__":
    if "--as-a-rank" in sys.argv:
        as_a_rank()
    else:
        rank_cases.main("__main__")
