#!/usr/bin/env python3
"""One training step of a small network in a Python framework: microseconds per step.

    OMP_NUM_THREADS=1 python peers.py PEER [WAY]

PEER: pytorch, accelerate, lightning, composer, composer_metric or composer_algorithms. WAY: plain, as the documentation shows it
(the default); fused, with SGD(fused=True); compiled, also with torch.compile. The step: MLP 32-64-64-10, batch 8, cross entropy, SGD with momentum 0.9, on the CPU with one thread.
The batches are tensors that exist already, and the loader that gives them out takes the time when it is
asked for every BLOCK-th one: nothing of the framework is touched, and all of its loop is timed.
Prints one line of JSON. run.py runs this and tutti's own program alternately.
"""
import json
import statistics
import sys
import time
import warnings

import torch

WARM_UP, BLOCK, BLOCKS = 500, 200, 15
BATCH, INPUTS, HIDDEN, CLASSES = 8, 32, 64, 10
STEPS = WARM_UP + BLOCK * BLOCKS

warnings.filterwarnings("ignore")


class Loader:
    """STEPS batches of the same 64, with the time at every BLOCK-th after the warm-up."""

    batch_size = BATCH  # Composer asks for it

    def __init__(self):
        torch.manual_seed(1)
        self.batches = [
            (torch.randn(BATCH, INPUTS), torch.randint(0, CLASSES, (BATCH,))) for _ in range(64)
        ]
        self.stamps = []

    def __len__(self):
        return STEPS + 1

    def __iter__(self):
        for step in range(STEPS + 1):
            if step >= WARM_UP and (step - WARM_UP) % BLOCK == 0:
                self.stamps.append(time.perf_counter_ns())
            yield self.batches[step % 64]

    def report(self, name, way, versions):
        pairs = zip(self.stamps, self.stamps[1:])
        blocks = [(b - a) / BLOCK / 1000 for a, b in pairs][:BLOCKS]
        assert len(blocks) == BLOCKS, f"{len(blocks)} blocks were timed, expected {BLOCKS}"
        print(json.dumps({"name": name, "way": way, "us": statistics.median(blocks), "blocks": blocks,
                          "versions": {"torch": torch.__version__, **versions}}))


def network(way):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES))
    return torch.compile(net) if way == "compiled" else net


def sgd(model, way):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True if way != "plain" else None)


def pytorch(loader, way):
    model, loss_of = network(way), torch.nn.CrossEntropyLoss()
    optimizer = sgd(model, way)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
    return {}


def accelerate(loader, way):
    import accelerate as package
    accelerator = package.Accelerator(cpu=True)
    model = network(way)
    model, optimizer = accelerator.prepare(model, sgd(model, way))
    loss_of = torch.nn.CrossEntropyLoss()
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(inputs), targets))
        optimizer.step()
    return {"accelerate": package.__version__}


def lightning(loader, way):
    import logging
    import lightning as package
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss_of = network(way), torch.nn.CrossEntropyLoss()

        def training_step(self, batch, batch_idx):
            return self.loss_of(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return sgd(self, way)

    trainer = package.Trainer(accelerator="cpu", max_epochs=1, logger=False, barebones=True)
    trainer.fit(Module(), train_dataloaders=loader)
    return {"lightning": package.__version__}


def composer_run(loader, way, metrics, algorithms):
    import composer
    from composer.core import DataSpec
    from composer.models import ComposerClassifier
    from torchmetrics import MetricCollection

    given = {} if metrics else {"train_metrics": MetricCollection([])}
    model = ComposerClassifier(network(way), num_classes=CLASSES, **given)
    data = DataSpec(loader, get_num_samples_in_batch=lambda batch: BATCH)
    trainer = composer.Trainer(
        model=model, train_dataloader=data, max_duration=f"{STEPS + 1}ba", optimizers=sgd(model, way),
        algorithms=algorithms, device="cpu", precision="fp32", progress_bar=False, loggers=[], seed=1)
    trainer.fit()
    return {"composer": composer.__version__}


def composer(loader, way):
    return composer_run(loader, way, metrics=False, algorithms=[])


def composer_metric(loader, way):
    return composer_run(loader, way, metrics=True, algorithms=[])


def composer_algorithms(loader, way):
    from composer.algorithms import GradientClipping, LabelSmoothing, MixUp
    return composer_run(loader, way, metrics=False, algorithms=[
        MixUp(alpha=0.2), LabelSmoothing(smoothing=0.1),
        GradientClipping(clipping_type="norm", clipping_threshold=1.0)])


WAYS = ["plain", "fused", "compiled"]
PEERS = {f.__name__: f for f in
         [pytorch, accelerate, lightning, composer, composer_metric, composer_algorithms]}

if __name__ == "__main__":
    name, way = (*sys.argv[1:], *["", "plain"][len(sys.argv) - 1:])[:2]
    if name not in PEERS or way not in WAYS:
        sys.exit(f"usage: peers.py {'|'.join(PEERS)} {'|'.join(WAYS)}")
    torch.set_num_threads(1)
    source = Loader()
    source.report(name, way, PEERS[name](source, way))
