#!/usr/bin/env python3
"""What runs.cpp trains, in plain PyTorch and in Composer.

    OMP_NUM_THREADS=1 python peers.py SIDE digits|digits_recipe|cifar|cifar_channels_last|gpt EPOCHS TARGET SEED FILES...

SIDE: pytorch or composer, with the fused optimizer; pytorch_compiled or composer_compiled, also with torch.compile, which
compiles before the clock starts. The data are tensors in memory behind torch's DataLoader. The GPT is Hugging Face's. EPOCHS, TARGET and SEED mean what they
mean in runs.cpp, and one line of JSON is printed, as there. The clock starts when everything is made, at the fit, as there.
digits_recipe is Composer's alone.
"""
import json
import struct
import sys
import time
import warnings

import torch
import torch._dynamo  # noqa: F401: optimizers import it when they are made, which takes seconds and is not measured
from torch import nn
from torch.nn import functional as F

LENGTH = 128
warnings.filterwarnings("ignore")


def idx(path):
    raw = open(path, "rb").read()
    sizes = struct.unpack(f">{raw[3]}I", raw[4:4 + 4 * raw[3]])
    return torch.frombuffer(bytearray(raw[4 + 4 * raw[3]:]), dtype=torch.uint8).view(*sizes)


def loader(*tensors, batch_size, train, drop_last=False):
    data = torch.utils.data.TensorDataset(*tensors)
    return torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=train, drop_last=drop_last)


def digits(files):
    images, labels = idx(files[0]).float().unsqueeze(1) / 8 - 1, idx(files[1]).long()
    test = torch.arange(len(images)) % 5 == 0
    return [loader(images[rows], labels[rows], batch_size=64, train=train) for rows, train in ((~test, True), (test, False))]


def cifar(files):
    out = []
    for path, train in zip(files, (True, False)):
        raw = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8).view(-1, 3073)
        images = raw[:, 1:].reshape(-1, 3, 32, 32).float() / 127.5 - 1
        out.append(loader(images, raw[:, 0].long(), batch_size=32, train=train))
    return out


class Sequences(torch.utils.data.Dataset):
    def __init__(self, text):
        count = len(text) // LENGTH
        self.ids = (torch.frombuffer(bytearray(text[:count * LENGTH]), dtype=torch.uint8).long() % 128).view(count, LENGTH)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def text(files):
    raw = open(files[0], "rb").read()[:300_000]
    cut = len(raw) - len(raw) // 10
    return [torch.utils.data.DataLoader(Sequences(part), batch_size=16, shuffle=train, drop_last=train)
            for part, train in ((raw[:cut], True), (raw[cut:], False))]


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def small_resnet():
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), Block(16, 16, 1),
                        Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class ResNet9(nn.Module):
    def __init__(self, width=16):
        super().__init__()

        def block(inputs, outputs, pool):
            layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))

        self.front = nn.Sequential(block(3, width, False), block(width, 2 * width, True))
        self.branch1 = nn.Sequential(block(2 * width, 2 * width, False), block(2 * width, 2 * width, False))
        self.middle = nn.Sequential(block(2 * width, 4 * width, True), block(4 * width, 8 * width, True))
        self.branch2 = nn.Sequential(block(8 * width, 8 * width, False), block(8 * width, 8 * width, False))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x):
        x = self.front(x)
        x = self.middle(x + self.branch1(x))
        x = x + self.branch2(x)
        return self.head(x.amax((2, 3)))


def gpt():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, embd_pdrop=0,
                                      attn_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0))


def make(name):
    if name == "gpt":
        model = gpt()
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=1e-2, fused=True)
    model, lr = (small_resnet(), 0.1) if name.startswith("digits") else (ResNet9(), 0.005)
    if name == "cifar_channels_last":
        model = model.to(memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, fused=True)


def prepared(name, batch):
    return [batch[0].to(memory_format=torch.channels_last), batch[1]] if name == "cifar_channels_last" else batch


def loss_of(name, model, batch):
    return model(**batch).loss if name == "gpt" else F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def evaluate(name, model, test):
    model.eval()
    if name == "gpt":
        losses = [(model(**batch).loss.item(), len(batch["labels"])) for batch in test]
        return float(torch.tensor(sum(a * n for a, n in losses) / sum(n for _, n in losses)).exp())
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
    return right / len(test.dataset)


def compile_ahead(name, model, train, test):
    """Compiles for the batches of an epoch, in training and in evaluation, and leaves the model as it was."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.compile()
    drawn = torch.get_rng_state()
    for training, loader in ((True, train), (False, test)):
        model.train(training)
        shapes = set()
        for batch in loader:  # the last one may be smaller
            batch = prepared(name, batch)
            shape = len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])
            if shape not in shapes:
                shapes.add(shape)
                with torch.set_grad_enabled(training):
                    loss = loss_of(name, model, batch)
                    if training:
                        loss.backward()
    model.zero_grad()
    model.load_state_dict(before)
    torch.set_rng_state(drawn)


def pytorch(name, epochs, target, seed, train, test, compiled):
    model, optimizer = make(name)
    if compiled:
        compile_ahead(name, model, train, test)

    def fit():
        for epoch in range(1, epochs + 1):
            model.train()
            for batch in train:
                optimizer.zero_grad()
                loss_of(name, model, prepared(name, batch)).backward()
                optimizer.step()
            if target or epoch == epochs:
                found = evaluate(name, model, test)
                if target and found > target:
                    break
        return epoch, lambda: found
    return fit


def composer(name, epochs, target, seed, train, test, compiled):
    import composer as package
    from composer.callbacks import ThresholdStopper
    from composer.models import ComposerClassifier, ComposerModel
    from torchmetrics import MetricCollection
    model, optimizer = make(name.replace("_channels_last", ""))
    if compiled:
        compile_ahead(name, model, train, test)
    if name == "gpt":
        class Wrapped(ComposerModel):
            def __init__(self):
                super().__init__()
                self.net = model

            def forward(self, batch):
                return self.net(**batch)

            def loss(self, outputs, batch):
                return outputs.loss

        wrapped = Wrapped()
    else:
        wrapped = ComposerClassifier(model, num_classes=10, train_metrics=MetricCollection([]))
    algorithms = []
    if name == "digits_recipe":
        from composer.algorithms import EMA, BlurPool, LabelSmoothing, MixUp
        algorithms = [MixUp(alpha=1.0), BlurPool(), LabelSmoothing(), EMA(half_life="50ba")]
    if name == "cifar_channels_last":
        from composer.algorithms import ChannelsLast
        algorithms = [ChannelsLast()]
    stoppers = [ThresholdStopper("MulticlassAccuracy", "eval", target)] if target else []
    trainer = package.Trainer(model=wrapped, train_dataloader=train, eval_dataloader=None if name == "gpt" else test,
                              eval_interval=f"{1 if target else epochs}ep", max_duration=f"{epochs}ep", optimizers=optimizer,
                              algorithms=algorithms, callbacks=stoppers, device="cpu", precision="fp32", progress_bar=False,
                              loggers=[], seed=seed)

    def fit():
        trainer.fit()
        if name == "gpt":
            perplexity = evaluate(name, model, test)
            return trainer.state.timestamp.epoch.value, lambda: perplexity
        return trainer.state.timestamp.epoch.value, lambda: float(trainer.state.eval_metric_values["MulticlassAccuracy"])
    return fit


def main():
    side, name, epochs, target, seed, files = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), sys.argv[6:]
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, test = {"digits": digits, "digits_recipe": digits, "cifar": cifar, "cifar_channels_last": cifar,
                   "gpt": text}[name](files)
    make_fit = composer if side.startswith("composer") else pytorch
    fit = make_fit(name, epochs, target, seed, train, test, side.endswith("_compiled"))
    began = time.process_time()
    done, found = fit()
    seconds = time.process_time() - began
    version = {"torch": torch.__version__}
    if side.startswith("composer"):
        import composer as package
        version["composer"] = package.__version__
    units = LENGTH if name == "gpt" else 1
    print(json.dumps({"name": name, "seconds": seconds, "epochs": done,
                      "per_second": done * len(train) * train.batch_size * units / seconds, "found": found(), **version}))


if __name__ == "__main__":
    main()
