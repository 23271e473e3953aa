"""Lockstep's process group as a backend of torch.distributed, for CPU tensors:

    dist.init_process_group("lockstep")

NCCL serves tensors on GPUs, where PyTorch has it. `import lockstep_torch` registers the backend; where the wheel is installed, PyTorch
does so by itself. See docs/torch-distributed.md of Lockstep.
"""

import atexit
import datetime
import os
import sys
import sysconfig
import weakref

import torch
import torch.distributed as dist

from . import _built_for


def _check_build():
    """The extension uses classes of PyTorch's C++ library, whose layout changes with every version."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if suffix != _built_for.EXTENSION_SUFFIX:
        raise ImportError(
            f"lockstep_torch: this wheel was built for a Python whose extensions are named *{_built_for.EXTENSION_SUFFIX}, "
            f"and those of Python {sys.version.split()[0]} are named *{suffix}; build the wheel again with scripts/wheel --python {sys.executable}"
        )
    found = torch.__version__.split("+")[0]
    if found != _built_for.TORCH_VERSION:
        raise ImportError(
            f"lockstep_torch: this wheel was built for PyTorch {_built_for.TORCH_VERSION}, and PyTorch {torch.__version__} "
            f"is installed; install torch=={_built_for.TORCH_VERSION}, or build the wheel again with scripts/wheel"
        )
    if torch.compiled_with_cxx11_abi() != _built_for.CXX11_ABI:
        raise ImportError(
            f"lockstep_torch: this wheel was built for a PyTorch whose _GLIBCXX_USE_CXX11_ABI is {int(_built_for.CXX11_ABI)}, "
            f"and the installed one has {int(torch.compiled_with_cxx11_abi())}; build the wheel again with scripts/wheel"
        )
    if not dist.is_available():
        raise ImportError("lockstep_torch: this PyTorch was built without torch.distributed; install one with it")


_check_build()

from . import _C  # noqa: E402: only once the versions have been checked

__version__ = _C.version

# The groups that have not ended: those of a program that ends without destroy_process_group() leave in peace, so that
# their peers do not count this rank as lost.
_groups = weakref.WeakSet()


def _create(options, _=None):
    timeout = options.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    backend = _C.create_backend(options.store, options.group_rank, options.group_size, timeout)
    _groups.add(backend)
    return backend


def _leave_all():
    for backend in list(_groups):
        backend.shutdown()


def _device_backend_map(config):
    """PyTorch gives all devices of a backend's name to that backend. Those for which "lockstep" alone was asked are shared with NCCL; without
    it, our backend refuses CUDA tensors and says why. device_count() asks the driver, and leaves CUDA as it is, so that the process may fork."""
    devices = config.device_backend_map
    if devices.get("cuda") == "lockstep" and dist.is_nccl_available() and torch.cuda.device_count() > 0:
        devices["cuda"] = "nccl"
    return devices


def register():
    """Makes the backend known to PyTorch. Called by the import, and by PyTorch, which finds the name in the wheel's entry points."""
    dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu", "cuda"])
    dist.distributed_c10d.BackendConfig.get_device_backend_map = _device_backend_map
    # Lockstep keeps a flight record of its own. PyTorch's in addition would take a third of a small call's time: it is kept where it is asked for.
    if not any(os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")):
        dist.distributed_c10d._FR_SELF_RECORDING_BACKENDS.add("lockstep")


atexit.register(_leave_all)
register()
