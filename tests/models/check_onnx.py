"""Runs FOLDER/<case>.onnx in onnxruntime, for onnx_python_test.cpp.

check_onnx.py FOLDER: checks each file with onnx's checker, computes the outputs for the inputs in
FOLDER/<case>.safetensors ("<samples>/input/<i>") and compares them with Lockstep's ("<samples>/output/<i>").
"""
import glob
import os
import sys

import numpy
import onnx
import onnxruntime
from safetensors.numpy import load_file

TOLERANCE = 1e-5


def difference(found, expected):
    """In parts of the largest expected value; NaN and infinity must be the same."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
    if found.dtype != numpy.float32:
        return None if numpy.array_equal(found, expected) else f"{found.ravel()[:9]}, expected {expected.ravel()[:9]}"
    finite = numpy.isfinite(expected)
    if not numpy.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return "other NaN or infinite values"
    largest = numpy.abs(expected[finite]).max(initial=1e-30)
    error = numpy.abs(found[finite].astype(numpy.float64) - expected[finite]).max(initial=0) / largest
    return None if error <= TOLERANCE else f"differs by {error:.2e} of the largest value"


def check(path):
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensors = load_file(path.removesuffix(".onnx") + ".safetensors")
    inputs = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]
    faults = []
    for samples in sorted({name.split("/")[0] for name in tensors}):
        feed = {name: tensors[f"{samples}/input/{i}"] for i, name in enumerate(inputs)}
        for i, found in enumerate(session.run(outputs, feed)):
            fault = difference(numpy.asarray(found), tensors[f"{samples}/output/{i}"])
            if fault:
                faults.append(f"{os.path.basename(path)}: output '{outputs[i]}' of {samples} samples: {fault}")
    return faults


def main():
    paths = sorted(glob.glob(sys.argv[1] + "/*.onnx"))
    faults = []
    for path in paths:
        try:
            faults += check(path)
        except Exception as error:
            faults.append(f"{os.path.basename(path)}: {error}")
    for fault in faults:
        print(fault)
    print(f"{len(paths)} files, {len(faults)} faults")
    sys.exit(1 if faults or not paths else 0)


main()
