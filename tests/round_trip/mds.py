# SPDX-License-Identifier: Apache-2.0
"""MDS shards of mosaicml-streaming for round_trip/mds.cpp.

make FOLDER: shards that MDSWriter writes, in FOLDER/python.
check FOLDER: reads what tutti wrote in FOLDER/NAME with StreamingDataset, and compares it.
"""
import logging
import os
import sys
import tempfile

import numpy as np
import streaming
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

COLUMNS = {"f": "float32", "i": "int", "j": "json", "s": "str", "x": "ndarray", "y": "ndarray:int16:2,3"}


def sample(i):
    return {"f": np.float32(i / 4), "i": i * 10**12 - 5, "j": {"k": [i, None, "\u00e9"]}, "s": f"caf\u00e9 {i}",
            "x": (np.arange(300 if i % 2 else 3, dtype=np.float64) + i), "y": np.full((2, 3), i, np.int16)}


def make(root):
    with MDSWriter(columns=COLUMNS, out=os.path.join(root, "python"), compression="zstd:5",
                   hashes=["blake2s", "sha1", "sha3_512", "xxh128", "xxh3_64"], size_limit=20000) as out:
        for i in range(60):
            out.write(sample(i))


def check(root):
    for number, name in enumerate(sorted(os.listdir(root))):
        if name == "python":
            continue
        clean_stale_shared_memory()
        local = tempfile.mkdtemp(dir=tempfile.gettempdir())
        checked = ["xxh64", "sha256", "xxh128", "blake2b", "sha3_256"][number % 5]
        found = StreamingDataset(local=local, remote=os.path.join(root, name), batch_size=1, validate_hash=checked)
        assert len(found) == 60, (name, len(found))
        for i in range(60):
            got, want = found[i], sample(i)
            for key in COLUMNS:
                assert np.array_equal(got[key], want[key]) if key in "xy" else got[key] == want[key], (name, i, key, got[key])
            assert got["x"].dtype == np.float64 and got["y"].dtype == np.int16
        print(name, "is read by streaming", streaming.__version__, flush=True)
    return 0


if __name__ == "__main__":
    logging.getLogger("streaming").setLevel(logging.CRITICAL)
    sys.exit(make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2]))
