# SPDX-License-Identifier: Apache-2.0
"""The models of benchmarks/compiled, at small shapes: make(NAME) gives a Case."""
import os
import sys
from types import SimpleNamespace as Case

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))

import torch
from torch import nn
from torch.nn import functional as F

import tutti_export

LOSSES = {
    "classes": lambda out, y: F.cross_entropy(out, y),
    "tokens": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    "next": lambda out, y: F.cross_entropy(out[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
    "noise": lambda out, y: F.mse_loss(out, y),
    "step": lambda out, y: F.cross_entropy(out, y),  # exported with --loss cross_entropy
}


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(128, 64), nn.LSTM(64, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Branch(nn.Module):
    """Control flow by torch.cond."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.b(torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.a(x).tanh(), (x,)))


def images(n, size=64):
    return {"x": torch.randn(n, 3, size, size)}


def tokens(n, length, words):
    return {"input_ids": torch.randint(0, words, (n, length))}


def classes(model, inputs, count, optimizer="sgd"):
    rows = len(next(iter(inputs.values())))
    return Case(model=model, inputs=inputs, y=torch.randint(0, count, (rows,)), loss="classes", optimizer=optimizer, prefix="")


def text(model, inputs, loss, words, target="input_ids"):
    y = inputs[target] if loss == "next" else torch.randint(0, words, inputs[target].shape)
    model = tutti_export.HuggingFace(model, list(inputs), "logits")
    return Case(model=model, inputs=inputs, y=y, loss=loss, optimizer="adamw", prefix="model.")


def torchvision(name, **arguments):
    from torchvision import models
    return models.get_model(name, weights=None, num_classes=100, **arguments)


def timm(name, **arguments):
    from timm import create_model
    return create_model(name, num_classes=100, **arguments)


def transformer(kind, **arguments):
    import transformers
    config, model = {
        "gpt2": ("GPT2Config", "GPT2LMHeadModel"), "bert": ("BertConfig", "BertForMaskedLM"),
        "llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
        "t5": ("T5Config", "T5ForConditionalGeneration")}[kind]
    return getattr(transformers, model)(getattr(transformers, config)(**arguments))


def unet():
    """A step of diffusion training: noised images and times to the noise."""
    import diffusers
    model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                  down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
                                  attention_head_dim=16)
    inputs = {"sample": torch.randn(4, 3, 32, 32), "timestep": torch.randint(0, 1000, (4,))}
    return Case(model=tutti_export.HuggingFace(model, list(inputs), "sample"), inputs=inputs, y=torch.randn(4, 3, 32, 32),
                loss="noise", optimizer="adamw", prefix="model.", sizes={"batch": (2, 63, 1)})  # its layers do otherwise from 64 on


DECODER = dict(vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=128, use_cache=False)

def mlp(loss):
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    case = classes(model, {"x": torch.randn(8, 32)}, 10)
    case.loss = loss
    return case


MODELS = {
    "mlp": lambda: mlp("classes"),
    "mlp_step": lambda: mlp("step"),
    "gpt2": lambda: text(transformer("gpt2", vocab_size=128, n_positions=128, n_embd=64, n_layer=2, n_head=4, embd_pdrop=0,
                                     attn_pdrop=0, resid_pdrop=0, use_cache=False), tokens(16, 128, 128), "next", 128),
    # As it was published, for its memory.
    "gpt2_small": lambda: text(transformer("gpt2", embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, use_cache=False),
                               tokens(4, 256, 50257), "next", 50257),
    "resnet18": lambda: classes(torchvision("resnet18"), images(8), 100),
    "vit": lambda: classes(timm("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=6), images(8), 100, "adamw"),
    "llama": lambda: text(transformer("llama", **DECODER), tokens(4, 128, 512), "next", 512),
    "bert": lambda: text(transformer("bert", vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=512, max_position_embeddings=128, hidden_dropout_prob=0,
                                     attention_probs_dropout_prob=0), tokens(4, 128, 512), "tokens", 512),
    "lstm": lambda: classes(Lstm(), {"tokens": torch.randint(0, 128, (8, 16))}, 10, "adamw"),
    "mobilenet_v3": lambda: classes(torchvision("mobilenet_v3_small", dropout=0.0), images(8), 100),
    "convnext_tiny": lambda: classes(torchvision("convnext_tiny", stochastic_depth_prob=0.0), images(4), 100, "adamw"),
    "resnet50": lambda: classes(torchvision("resnet50"), images(4), 100),
    "efficientnet_b0": lambda: classes(torchvision("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0), images(4), 100),
    "swin": lambda: classes(timm("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=48, depths=(2, 2, 2, 2),
                                 num_heads=(2, 2, 4, 4), drop_path_rate=0.0), images(4), 100, "adamw"),
    "qwen3": lambda: text(transformer("qwen3", head_dim=32, **DECODER), tokens(4, 128, 512), "next", 512),
    "t5": lambda: text(transformer("t5", vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
                                   use_cache=False),
                       {**tokens(4, 64, 512), "decoder_input_ids": torch.randint(0, 512, (4, 32))}, "tokens", 512,
                       "decoder_input_ids"),
    "unet": unet,
    "cond": lambda: classes(Branch(), {"x": torch.randn(8, 32)}, 10),
}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()
