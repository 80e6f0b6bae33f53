# SPDX-License-Identifier: Apache-2.0
"""tutti from Python: its algorithms as operators of PyTorch, and what its runs have left.

torch.ops.tutti.*      the functions of the algorithms on tensors; docs/python.md lists them
tutti.load(run)        a run: state_dict(), metrics, hyperparameters, best
tutti.runs(folder)     a table of the runs of a folder
tutti.read_weights(p)  a state dict of any file or folder of weights that tutti reads
"""

import importlib.metadata
import pathlib

import torch

from . import _built


def _release(version):
    return version.split("+")[0].split(".")[:2]


if _release(torch.__version__) != _release(_built.torch):  # a C++ library is for one minor release of torch
    raise ImportError(
        f"this tutti was built for torch {_built.torch} and torch is {torch.__version__}; build it again with "
        "pip install --no-build-isolation --force-reinstall --no-deps <checkout of tutti>/cmake/python"
    )
torch.ops.load_library(str(pathlib.Path(__file__).parent / "_operators.so"))

from .runs import Best, Run, Table, load, read_weights, runs  # noqa: E402

__version__ = importlib.metadata.version("tutti")
__all__ = ["Best", "Run", "Table", "load", "read_weights", "runs"]
