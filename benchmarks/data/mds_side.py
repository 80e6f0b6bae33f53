#!/usr/bin/env python3
"""The peer of benchmark_mds read: MosaicML Streaming's StreamingDataset over the same shards.

    python mds_side.py FOLDER shuffle|in_order samples|batches

samples: the data set's own iterator, arrays of NumPy one by one; batches: behind torch's DataLoader, batches of 32
tensors. Prints one line of JSON: the CPU seconds of the second epoch, and a number that depends on the order.
"""
import json
import sys
import time

import streaming
import torch

folder, shuffle, what = sys.argv[1:]
torch.set_num_threads(1)
data = streaming.StreamingDataset(local=folder, shuffle=shuffle == "shuffle", batch_size=32)
loader = torch.utils.data.DataLoader(data, batch_size=32) if what == "batches" else data
order = 0
for one in loader:
    numbers = one["tokens"][:, 0].tolist() if what == "batches" else [int(one["tokens"][0])]
    for number in numbers:
        order = (order * 1_000_003 + number) % 2**64
begin = time.process_time()
samples = 0
for one in loader:
    samples += len(one["tokens"]) if what == "batches" else 1
seconds = time.process_time() - begin
print(json.dumps({"seconds": seconds, "samples": samples, "order": order, "streaming": streaming.__version__,
                  "torch": torch.__version__}))
