# SPDX-License-Identifier: Apache-2.0
"""onnxruntime for round_trip/onnx.cpp.

check FOLDER: runs each NAME.onnx for the batches NAME.*.safetensors, "in.NAME" of which are inputs
and "out.NAME" what the model gave, and says what the file calls its inputs and outputs in
NAME.json. Outputs have to be those within 1e-5 of the largest. Where there is a package onnx, its
checker sees the file, too.
"""
import json
import pathlib
import sys

import numpy
import onnxruntime
from safetensors.numpy import load_file

try:
    import onnx
except ImportError:
    onnx = None


def facts(values):
    return [[value.name, value.type, value.shape] for value in values]


def check(path):
    if onnx is not None:
        onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    path.with_suffix(".json").write_text(
        json.dumps({"inputs": facts(session.get_inputs()), "outputs": facts(session.get_outputs())}))
    batches = sorted(path.parent.glob(path.stem + ".*.safetensors"))
    assert len(batches) >= 2, path
    for batch in batches:
        tensors = load_file(batch)
        inputs = {name[3:]: x for name, x in tensors.items() if name.startswith("in.")}
        for output in session.get_outputs():
            want = tensors["out." + output.name].astype(numpy.float64)
            got = session.run([output.name], inputs)[0].astype(numpy.float64)
            assert got.shape == want.shape, (batch, got.shape, want.shape)
            worst = numpy.abs(got - want).max() / numpy.abs(want).max()
            assert worst <= 1e-5, (str(batch), output.name, worst)


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(3)
    for file in sorted(pathlib.Path(sys.argv[2]).glob("*.onnx")):
        check(file)
