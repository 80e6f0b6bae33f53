# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch for run.py: Hugging Face's GPT-2 under DDP or fully_shard, AdamW with foreach, under any launcher.

    python pytorch_side.py none|parameters LAYERS WIDTH VOCABULARY LENGTH STEPS
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

stage, (layers, width, vocabulary, length, steps) = sys.argv[1], map(int, sys.argv[2:7])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=max(length, 8), n_embd=width, n_layer=layers, n_head=width // 64 or width // 6,
                                   embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, use_cache=False))
model.train()
if stage == "none":
    run = DistributedDataParallel(model, gradient_as_bucket_view=True)
else:
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    run = fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(run.parameters(), lr=1e-4, fused=stage == "none", foreach=None if stage == "none" else True)
torch.manual_seed(100 + rank)
ids = torch.randint(vocabulary, (1, length))


def step():
    optimizer.zero_grad()
    loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


for _ in range(2):
    step()
dist.barrier()
wall, cpu = [], []
for _ in range(steps):
    before, started = time.process_time(), time.perf_counter()
    loss = step().item()
    cpu.append(time.process_time() - before)
    wall.append(time.perf_counter() - started)
dist.barrier()
total = torch.tensor([statistics.median(cpu)], dtype=torch.float64)
most = torch.tensor([statistics.median(wall)], dtype=torch.float64)
dist.all_reduce(total)
dist.all_reduce(most, op=dist.ReduceOp.MAX)
if rank == 0:
    print(json.dumps({"stage": stage, "ranks": ranks, "wall": most.item(), "cpu": total.item(), "loss": loss}), flush=True)
dist.destroy_process_group()
os._exit(0)
