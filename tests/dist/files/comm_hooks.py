"""Makes comm_hooks.safetensors: gradients of PyTorch's DDP with its communication hooks, 2 ranks.

python comm_hooks.py OUT  (torch 2.11.0, Gloo)

x [6, 8, 40]: a batch a step, rank r takes rows 4r to 4r+3. init.N, and <hook>.N: the gradient of parameter N after
the last step; parameters do not change. The loss is the mean of the squared outputs. PowerSGD draws its first factors
with seed 5.
"""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook


class Seed:
    def randint(self, _):
        return 5


def power(**options):
    state = PowerSGDState(process_group=None, start_powerSGD_iter=2, **options)
    state.rng = Seed()
    return state, powerSGD_hook


def work(rank, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.meet", rank=rank, world_size=2)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(6, 8, 40, generator=g)
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    tensors = {"x": x}
    tensors |= {f"init.{i}": p.detach().clone() for i, p in enumerate(model.parameters())}
    for name, hook in {
        "fp16": (None, default_hooks.fp16_compress_hook),
        "bf16": (None, default_hooks.bf16_compress_hook),
        "power1": power(matrix_approximation_rank=1),
        "power2": power(matrix_approximation_rank=2, use_error_feedback=False),
    }.items():
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(*hook)
        for step in range(6):
            model.zero_grad()
            ddp(x[step, 4 * rank : 4 * rank + 4]).pow(2).mean().backward()
        tensors |= {f"{name}.{i}": p.grad.clone() for i, p in enumerate(model.parameters())}
    if rank == 0:
        save_file(tensors, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
