# SPDX-License-Identifier: Apache-2.0
"""Writes the files that tests/data/parquet.cpp reads: python parquet.py FOLDER, with pyarrow."""

import datetime
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(sys.argv[1])


def table(first, rows):
    at = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(at, pa.int64()),
            "small": pa.array([i % 100 for i in at], pa.uint16()),
            "half": pa.array([i / 4 for i in at], pa.float16()),
            "x": pa.array([i / 8 for i in at], pa.float32()),
            "even": pa.array([i % 2 == 0 for i in at], pa.bool_()),
            "ids": pa.array([list(range(i % 4)) for i in at], pa.list_(pa.int32())),
            "box": pa.array([[i, i + 0.5, i + 1] for i in at], pa.list_(pa.float64(), 3)),
            "grid": pa.array([[[i, 1], [2, 3]] for i in at], pa.list_(pa.list_(pa.int64()))),
            "text": pa.array([None if i % 10 == 9 else f"row {i}" for i in at], pa.string()),
            "kind": pa.array([["cat", "dog"][i % 2] for i in at], pa.string()).dictionary_encode(),
            "image": pa.array([{"bytes": bytes([i % 256, 0, 255]), "path": f"{i}.png"} for i in at]),
            "day": pa.array([datetime.date(2026, 1, 1) + datetime.timedelta(i) for i in at], pa.date32()),
        }
    )


first, second = table(0, 25), table(25, 7)
pq.write_table(first, folder / "train-0.parquet", row_group_size=10, compression="zstd")
pq.write_table(second, folder / "train-1.parquet", compression="snappy")
with pa.OSFile(str(folder / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, first.schema) as writer:
    writer.write_table(first, max_chunksize=10)
with pa.OSFile(str(folder / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
    writer.write_table(first, max_chunksize=10)
pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), folder / "other.parquet")
pq.write_table(pa.table({"id": pa.array([], pa.int64())}), folder / "empty.parquet")
