"""Where test-gpu and bench-gpu find the programs (a build folder, or a bundle) and the libraries that these load: CUDA's, cuDNN, NCCL."""

import glob
import os
import pathlib
import shutil
import signal
import site
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What liblockstep_cuda.so needs, what is loaded for several ranks, and the driver's own.
LIBRARIES = ["libcublasLt.so.13", "libcudnn.so.9", "libnvrtc.so.13", "libnccl.so.2", "libcuda.so.1"]
BUILD_FOLDERS = ["launcher", "examples", "bench", "tests/gpu", "tests/kernels"]


def is_bundle():
    return (ROOT / "bin/lockrun").exists()


def library_folders():
    """Folders that may hold NVIDIA's libraries, the likelier first: named ones, toolkits, the wheels beside PyTorch."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [os.path.join(os.environ[name], "lib64") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += ["/usr/local/cuda/lib64", *sorted(glob.glob("/usr/local/cuda-*/lib64"), reverse=True)]
    folders += ["/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]
    packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    for package in dict.fromkeys(packages):
        folders += sorted(glob.glob(os.path.join(package, "nvidia/*/lib")))
    return [folder for folder in dict.fromkeys(folders) if folder]


def known_to_the_loader():
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout


class Programs:
    def __init__(self, build):
        self.build = pathlib.Path(build)
        self.missing = []  # libraries that are nowhere
        self.environment = dict(os.environ)
        folders, known, wanted = library_folders(), known_to_the_loader(), []
        for library in LIBRARIES:
            found = next((folder for folder in folders if os.path.exists(os.path.join(folder, library))), None)
            if found is not None:
                wanted.append(found)
            elif library not in known:
                self.missing.append(library)
        mine = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        self.environment["LD_LIBRARY_PATH"] = ":".join(path for path in dict.fromkeys([*mine, *wanted]) if path)
        if is_bundle():
            self.use_own_runtime_if_needed()

    def use_own_runtime_if_needed(self):
        """The bundle's libstdc++ is for machines that have none, or an older one; a newer one of the machine's comes first."""
        starts = subprocess.run([self.path("lockrun"), "--help"], env=self.environment, capture_output=True, text=True, check=False)
        if starts.returncode != 0:
            self.environment["LD_LIBRARY_PATH"] = f"{ROOT / 'lib'}:{self.environment['LD_LIBRARY_PATH']}"

    def path(self, name):
        places = [ROOT / "bin" / name] if is_bundle() else [self.build / folder / name for folder in BUILD_FOLDERS]
        for place in places:
            if place.exists():
                return str(place)
        sys.exit(f"{name} is not in {', '.join(str(place.parent) for place in places)}: build it with `ninja -C {self.build}`")


def ended_by_user(main):
    """The exit code of `main`; Ctrl-C and SIGTERM end it with what it cleans up, without a trace of Python's."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def build(folder, targets):
    """What a source tree needs before; the CUDA part along with it, where it is configured."""
    subprocess.run([ROOT / "scripts/dependencies"], check=True, cwd=ROOT)
    subprocess.run([ROOT / "scripts/configure", folder], check=True, cwd=ROOT)
    known = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], check=True, capture_output=True, text=True).stdout
    cuda = "src/cuda/liblockstep_cuda.so"
    subprocess.run(["ninja", "-C", folder, "launcher/lockrun", *targets, *([cuda] if f"\n{cuda}:" in known else [])], check=True)
