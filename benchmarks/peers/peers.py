#!/usr/bin/env python3
"""One training step of a small network in a Python framework: microseconds per step.

    OMP_NUM_THREADS=1 python peers.py pytorch|accelerate|lightning|composer|composer_metric|composer_algorithms

The step: MLP 32-64-64-10, batch 8, cross entropy, SGD with momentum 0.9, on the CPU with one thread.
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

    def report(self, name, versions):
        pairs = zip(self.stamps, self.stamps[1:])
        blocks = [(b - a) / BLOCK / 1000 for a, b in pairs][:BLOCKS]
        assert len(blocks) == BLOCKS, f"{len(blocks)} blocks were timed, expected {BLOCKS}"
        print(json.dumps({"name": name, "us": statistics.median(blocks), "blocks": blocks,
                          "versions": {"torch": torch.__version__, **versions}}))


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def pytorch(loader):
    model, loss_of = network(), torch.nn.CrossEntropyLoss()
    optimizer = sgd(model)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
    return {}


def accelerate(loader):
    import accelerate as package
    accelerator = package.Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, sgd(model))
    loss_of = torch.nn.CrossEntropyLoss()
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(inputs), targets))
        optimizer.step()
    return {"accelerate": package.__version__}


def lightning(loader):
    import logging
    import lightning as package
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss_of = network(), torch.nn.CrossEntropyLoss()

        def training_step(self, batch, batch_idx):
            return self.loss_of(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return sgd(self)

    trainer = package.Trainer(accelerator="cpu", max_epochs=1, logger=False, barebones=True)
    trainer.fit(Module(), train_dataloaders=loader)
    return {"lightning": package.__version__}


def composer_run(loader, metrics, algorithms):
    import composer
    from composer.core import DataSpec
    from composer.models import ComposerClassifier
    from torchmetrics import MetricCollection

    given = {} if metrics else {"train_metrics": MetricCollection([])}
    model = ComposerClassifier(network(), num_classes=CLASSES, **given)
    data = DataSpec(loader, get_num_samples_in_batch=lambda batch: BATCH)
    trainer = composer.Trainer(
        model=model, train_dataloader=data, max_duration=f"{STEPS + 1}ba", optimizers=sgd(model),
        algorithms=algorithms, device="cpu", precision="fp32", progress_bar=False, loggers=[], seed=1)
    trainer.fit()
    return {"composer": composer.__version__}


def composer(loader):
    return composer_run(loader, metrics=False, algorithms=[])


def composer_metric(loader):
    return composer_run(loader, metrics=True, algorithms=[])


def composer_algorithms(loader):
    from composer.algorithms import GradientClipping, LabelSmoothing, MixUp
    return composer_run(loader, metrics=False, algorithms=[
        MixUp(alpha=0.2), LabelSmoothing(smoothing=0.1),
        GradientClipping(clipping_type="norm", clipping_threshold=1.0)])


PEERS = {f.__name__: f for f in
         [pytorch, accelerate, lightning, composer, composer_metric, composer_algorithms]}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PEERS:
        sys.exit(f"usage: peers.py {'|'.join(PEERS)}")
    torch.set_num_threads(1)
    source = Loader()
    source.report(sys.argv[1], PEERS[sys.argv[1]](source))
