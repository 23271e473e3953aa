"""This machine's processor, and the variables that limit programs to one of its instruction sets."""

import os
import pathlib

# The flags that LOCKSTEP_ISA needs, see src/core/base/processor.h and src/core/device/amx_probe.h. Each set includes all earlier ones.
NEEDED = {
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "amx": {"amx_tile", "amx_bf16"},
}
# By the value of --isa: the variables that it sets for ours, and those for the peers. Open MPI adds up in op_avx; oneCCL has no such
# variable.
LIMITS = {
    "best": ({}, {}),
    "avx2": (
        {"LOCKSTEP_ISA": "avx2"},
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "OMPI_MCA_op_avx_support": "SSE,SSE2,SSE3,SSE4.1,AVX,AVX2",
        },
    ),
    "avx512": (
        {"LOCKSTEP_ISA": "avx512"},
        {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    ),
    "amx": (
        {"LOCKSTEP_ISA": "amx"},
        {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E4"},
    ),
}
VARIABLES = sorted({name for sides in LIMITS.values() for side in sides for name in side})


class Processor:
    """Its name, its instruction sets in rising order, and whether it multiplies bfloat16."""

    def __init__(self, cpuinfo):
        lines = (line.partition(":") for line in cpuinfo.splitlines())
        values = {}
        for key, _, value in lines:
            values.setdefault(key.strip(), value.strip())
        flags = set((values.get("flags") or values.get("Features") or "").split())
        # ARM has numbers: implementer 0x41 is Arm Limited, part 0xd0c the Neoverse N1.
        arm = f"implementer {values.get('CPU implementer')}, part {values.get('CPU part')}" if "CPU implementer" in values else "unknown"
        self.name = values.get("model name", arm)
        self.sets = ["neon"] if "asimd" in flags else []
        for name, needed in NEEDED.items():
            if not needed <= flags:
                break
            self.sets.append(name)
        self.flags = flags

    def choose(self, wanted):
        """The instruction set that --isa `wanted` means here. Raises ValueError if the processor lacks it."""
        if wanted == "best":
            return self.sets[-1] if self.sets else "baseline"
        if wanted not in self.sets:
            raise ValueError(f"--isa {wanted}: this processor ({self.name}) lacks it; it has {', '.join(self.sets) or 'none of them'}")
        return wanted

    def multiplies_bfloat16(self, isa):
        """True if `isa` has instructions for products of bfloat16."""
        return ("amx_bf16" in self.flags and isa == "amx") or ("avx512_bf16" in self.flags and isa in ("avx512", "amx"))


def this_processor():
    """PEERS_CPUINFO names another file than /proc/cpuinfo, for tests."""
    return Processor(pathlib.Path(os.environ.get("PEERS_CPUINFO", "/proc/cpuinfo")).read_text(encoding="utf-8"))
