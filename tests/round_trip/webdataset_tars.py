# SPDX-License-Identifier: Apache-2.0
"""Tar files of webdataset for round_trip/webdataset.cpp.

make FOLDER: theirs-{000000..000002}.tar, as ShardWriter of Python writes them.
check FOLDER: reads ours-{000000..000002}.tar, which tutti wrote with the same samples.
"""
import sys

import numpy as np
import webdataset as wds

COUNT = 7


def sample(i):
    key = f"dir{i % 2}/s{i:03d}" if i != 4 else "long/" + "n" * 200
    return {"__key__": key, "cls": 3 * i, "txt": f"text {i} é", "json": {"i": i, "v": [1.5, None]},
            "emb.npy": np.arange(i, dtype=np.float32), "bin": bytes(range(i))}


def make(folder):
    with wds.ShardWriter(folder + "/theirs-%06d.tar", maxcount=3, verbose=0) as writer:
        for i in range(COUNT):
            writer.write(sample(i))


def check(folder):
    read = list(wds.WebDataset(folder + "/ours-{000000..000002}.tar", shardshuffle=False, empty_check=False).decode())
    assert len(read) == COUNT, len(read)
    for i, got in enumerate(read):
        want = sample(i)
        for name in ("__key__", "cls", "txt", "json", "bin"):
            assert got[name] == want[name], (i, name, got[name])
        assert got["emb.npy"].dtype == np.float32 and (got["emb.npy"] == want["emb.npy"]).all(), i
        assert sorted(name for name in got if not name.startswith("__")) == ["bin", "cls", "emb.npy", "json", "txt"], got.keys()


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2])
