"""Lockstep's process group as a backend of torch.distributed, for CPU tensors:

    import lockstep_torch
    dist.init_process_group("lockstep")                   # or "cpu:lockstep,cuda:nccl"

See docs/torch-distributed.md of Lockstep.
"""

import atexit
import datetime
import weakref

import torch
import torch.distributed as dist

from . import _built_for


def _check_torch():
    """The extension uses classes of PyTorch's C++ library, whose layout changes with every version."""
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


_check_torch()

from . import _C  # noqa: E402: only once the version has been checked

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


atexit.register(_leave_all)
dist.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu"])
