"""sharded.py make|check FOLDER RANKS: sharded checkpoints of torch.distributed.checkpoint.

make: ranks write FOLDER/python, and rank 0 FOLDER/python.safetensors, the same whole.
check: ranks read what LAYOUTS names in FOLDER into shards and compare with FOLDER/whole.safetensors.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

# A run's checkpoint, weights that were cut into rows, and ranks that have several boxes of a tensor.
LAYOUTS = ("tutti/model", "weights/model", "boxes/model")


def place(tensors, mesh):
    return {
        name: t if t.dim() == 0 else distribute_tensor(t, mesh, [Shard(1 if name.startswith("col") else 0)])
        for name, t in tensors.items()
    }


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def work(rank, what, folder, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet_{what}_{ranks}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    if what == "make":
        g = torch.Generator().manual_seed(3)
        tensors = {
            "w": torch.randn(9, 4, generator=g),
            "col": torch.randn(4, 8, generator=g).to(torch.bfloat16),
            "few": torch.randn(2, generator=g),
            "step": torch.tensor(7.5),
            "n": torch.tensor(41),
        }
        dcp.save(place(tensors, mesh), storage_writer=HuggingFaceStorageWriter(f"{folder}/python", save_distributed=True))
        if rank == 0:
            save_file(tensors, f"{folder}/python.safetensors")
    else:
        want = load_file(f"{folder}/whole.safetensors")
        for layout in LAYOUTS:
            got = place({name: torch.zeros_like(t) for name, t in want.items()}, mesh)
            dcp.load(got, storage_reader=HuggingFaceStorageReader(f"{folder}/{layout}"))
            for name, t in want.items():
                full = whole(got[name])
                assert full.dtype == t.dtype and torch.equal(full, t), (layout, name)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # all is compared: a thread of torch that is still alive may abort an orderly end


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1], sys.argv[2], int(sys.argv[3])), nprocs=int(sys.argv[3]))
