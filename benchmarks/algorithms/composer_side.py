#!/usr/bin/env python3
"""A training step in Composer, with one algorithm or none: microseconds of CPU time per step.

    OMP_NUM_THREADS=1 python composer_side.py NAME KIND [NAME KIND]...
    OMP_NUM_THREADS=1 python composer_side.py --serve       reads lines "NAME KIND [NAME KIND]..."

NAME and KIND are those of algorithms.cpp, and so are the networks, the batches and the clock. Importing
Composer takes seconds, so --serve imports once and forks a fresh process for each line.
Prints a line of JSON for each: {"us": ..., "versions": ...} or {"absent": reason}.
"""
import json
import os
import statistics
import sys
import time
import traceback
import warnings

warnings.filterwarnings("ignore")

import composer
import torch
from composer import algorithms as of
from composer.models import ComposerClassifier, HuggingFaceModel
from torchmetrics import MetricCollection

WARM_UP, BLOCK, BLOCKS, REST = 16, 10, 6, 8
STEPS = WARM_UP + BLOCK * BLOCKS + REST
CLASSES, VOCABULARY = 10, 128

# name: batch, side or length, batches of an epoch or 0
KINDS = {
    "small": (8, 16, 0), "small_cut": (8, 13, 0), "small_resized": (8, 8, 0),
    "small_chosen": (4, 16, 0), "small_epochs": (8, 16, BLOCK), "batch_norm": (8, 16, 0),
    "resnet": (8, 8, 0), "bert": (4, 32, 0), "bert_reshaped": (8, 16, 0), "bert_shortened": (4, 16, 0),
}

# The options of algorithms.cpp.
ALGORITHMS = {
    "ALiBi": lambda: of.Alibi(max_sequence_length=32, train_sequence_length_scaling=0.5),
    "BlurPool": lambda: of.BlurPool(),
    "ChannelsLast": lambda: of.ChannelsLast(),
    "ColOut": lambda: of.ColOut(),
    "CutMix": lambda: of.CutMix(),
    "CutOut": lambda: of.CutOut(),
    "EMA": lambda: of.EMA(half_life="100ba"),
    "Factorize": lambda: of.Factorize(
        min_channels=16, latent_channels=0.25, min_features=32, latent_features=0.25),
    "GatedLinearUnits": lambda: of.GatedLinearUnits(),
    "GhostBatchNorm": lambda: of.GhostBatchNorm(ghost_batch_size=4),
    "GradientClipping": lambda: of.GradientClipping(clipping_type="norm", clipping_threshold=1.0),
    "GyroDropout": lambda: of.GyroDropout(p=0.5, sigma=16, tau=4),
    "LabelSmoothing": lambda: of.LabelSmoothing(smoothing=0.1),
    "LayerFreezing": lambda: of.LayerFreezing(freeze_start=0.0, freeze_level=0.0),
    "LowPrecisionGroupNorm": lambda: of.LowPrecisionGroupNorm(),
    "LowPrecisionLayerNorm": lambda: of.LowPrecisionLayerNorm(),
    "MixUp": lambda: of.MixUp(alpha=0.2),
    "ProgressiveResizing": lambda: of.ProgressiveResizing(
        initial_scale=0.5, delay_fraction=1.0, finetune_fraction=0.0),
    "SAM": lambda: of.SAM(),
    "SelectiveBackprop": lambda: of.SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0),
    "SeqLengthWarmup": lambda: of.SeqLengthWarmup(
        duration=1.0, min_seq_length=16, max_seq_length=32, step_size=16),
    "SqueezeExcite": lambda: of.SqueezeExcite(latent_channels=0.5, min_channels=16),
    "StochasticDepth": lambda: of.StochasticDepth(
        target_layer_name="ResNetBottleneck", stochastic_method="sample", drop_rate=0.2),
    "SWA": lambda: of.SWA(swa_start="0.01dur", swa_end="0.99dur", update_interval="1ba"),
    "WeightStandardization": lambda: of.WeightStandardization(),
}


class Loader:
    """STEPS batches of the same 16, with the time at every BLOCK-th after the warm-up."""

    def __init__(self, kind):
        torch.manual_seed(1)
        self.batch_size, size, epoch = KINDS[kind]
        self.length = epoch or STEPS
        self.step, self.stamps, self.batches = 0, [], []
        for _ in range(16):
            if kind.startswith("bert"):
                ids = torch.randint(0, VOCABULARY, (self.batch_size, size))
                self.batches.append(
                    {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
            else:
                self.batches.append((torch.randn(self.batch_size, 3, size, size),
                                     torch.randint(0, CLASSES, (self.batch_size,))))

    def __len__(self):
        return self.length

    def __iter__(self):
        for _ in range(self.length):
            if self.step >= WARM_UP and (self.step - WARM_UP) % BLOCK == 0:
                self.stamps.append(time.process_time_ns())
            batch = self.batches[self.step % 16]
            self.step += 1
            yield dict(batch) if isinstance(batch, dict) else batch

    def blocks(self):
        pairs = zip(self.stamps, self.stamps[1:])
        return [(b - a) / BLOCK / 1000 for a, b in pairs][:BLOCKS]


class Small(torch.nn.Module):
    def __init__(self, batch_norm):
        super().__init__()
        nn = torch.nn
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm0 = nn.BatchNorm2d(16) if batch_norm else nn.GroupNorm(4, 16)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.LayerNorm(32)
        self.hidden = nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = self.norm0(self.stem(x)).relu()
        x = self.pool(self.down(x).relu()).mean((2, 3))
        return self.fc(self.dropout(self.hidden(self.norm(x)).relu()))


class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        from torchvision.models.resnet import Bottleneck
        self.stem = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.body = torch.nn.Sequential(*[Bottleneck(32, 8) for _ in range(2)])
        self.fc = torch.nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


def bert():
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
                        attn_implementation="eager")  # the attention that Alibi knows
    return HuggingFaceModel(BertForMaskedLM(config), use_logits=True)


def model_of(kind):
    torch.manual_seed(0)
    if kind.startswith("bert"):
        return bert()
    net = Narrow() if kind == "resnet" else Small(kind == "batch_norm")
    return ComposerClassifier(net, num_classes=CLASSES, train_metrics=MetricCollection([]))


def images(name):
    """Microseconds for 16 images of 32 x 32, one after the other as in a loader's worker."""
    import numpy
    from PIL import Image
    numpy.random.seed(1)
    transform = (of.AugmentAndMixTransform if name == "AugMix" else of.RandAugmentTransform)()
    data = [Image.fromarray(numpy.random.randint(0, 256, (32, 32, 3), dtype=numpy.uint8))
            for _ in range(16)]
    stamps = []
    for batch in range(BLOCK * (BLOCKS + 2)):
        if batch >= BLOCK and batch % BLOCK == 0:
            stamps.append(time.process_time_ns())
        for image in data:
            transform(image)
    return [(b - a) / BLOCK / 1000 for a, b in zip(stamps, stamps[1:])]


def train(name, kind):
    model, loader = model_of(kind), Loader(kind)
    chosen = [] if name == "none" else [ALGORITHMS[name]()]
    trainer = composer.Trainer(
        model=model, train_dataloader=loader, max_duration=f"{STEPS}ba", algorithms=chosen,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True), device="cpu",
        precision="fp32", progress_bar=False, loggers=[], seed=1)
    trainer.fit()
    return loader.blocks()


def measure(names, kinds):
    torch.set_num_threads(1)
    medians = []
    for name, kind in zip(names, kinds):
        try:
            blocks = images(name) if kind == "image" else train(name, kind)
            assert len(blocks) == BLOCKS, f"{len(blocks)} blocks were timed, expected {BLOCKS}"
        except Exception as error:  # told to run.py, which leaves the row out
            traceback.print_exc()
            return {"absent": f"{type(error).__name__}: {error}".splitlines()[0]}
        medians.append(statistics.median(blocks))
    return {"us": medians, "versions": {"composer": composer.__version__, "torch": torch.__version__}}


def serve():
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(answers, (json.dumps(measure(line.split()[::2], line.split()[1::2])) + "\n").encode())
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            os.write(answers, b'{"absent": "the process died"}\n')


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    elif len(sys.argv) >= 3 and len(sys.argv) % 2 == 1:
        print(json.dumps(measure(sys.argv[1::2], sys.argv[2::2])))
    else:
        sys.exit("usage: composer_side.py NAME KIND [NAME KIND]... | --serve")
