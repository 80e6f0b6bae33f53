#!/usr/bin/env python3
"""What benchmark_language does, in Transformers; one line of JSON a call. CPU time, as many threads as OMP_NUM_THREADS says.

    python transformers_side.py make FAMILY FOLDER            writes a model with random weights: llama, gpt2, tiny_llama, large_llama
    python transformers_side.py train WAY FOLDER STEPS        WAY: eager or compiled
    python transformers_side.py generate FOLDER TOKENS
"""
import json
import statistics
import sys
import time

import torch
import transformers

BATCH, LENGTH, WARM_UP, PROMPT = 8, 128, 5, 16


def make(family, folder):
    torch.manual_seed(17)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=2048, n_positions=512, n_embd=256, n_layer=4, n_head=8, embd_pdrop=0.0,
                                         attn_pdrop=0.0, resid_pdrop=0.0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        layers, width, inner, vocabulary = (12, 768, 2048, 32000) if family == "large_llama" else (4, 256, 688, 2048)
        config = transformers.LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
                                          num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return {"parameters": model.num_parameters()}


def ids(vocabulary, shape, seed):
    """The same numbers as in benchmark_language: a linear congruential generator."""
    state, values = seed, []
    for _ in range(shape[0] * shape[1]):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append((state >> 33) % vocabulary)
    return torch.tensor(values).view(shape)


def train(way, folder, steps):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").train()
    called = torch.compile(model) if way == "compiled" else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    times, losses = [], []
    for step in range(WARM_UP + steps):
        batch = ids(model.config.vocab_size, (BATCH, LENGTH), 1 + step)
        begin = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = called(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.process_time() - begin)
    return {"ms": 1e3 * statistics.median(times[WARM_UP:]), "loss": losses[-1]}


@torch.no_grad()
def generate(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    prompt = ids(model.config.vocab_size, (1, PROMPT), 1)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    model.generate(prompt, attention_mask=mask, **options)
    times = []
    for _ in range(5):
        begin = time.process_time()
        found = model.generate(prompt, attention_mask=mask, **options)
        times.append(time.process_time() - begin)
    return {"ms": 1e3 * statistics.median(times), "tokens": found[0, PROMPT:].tolist()}


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_interop_threads(1)
    what, *rest = sys.argv[1:]
    if what == "make":
        done = make(*rest)
    elif what == "train":
        done = train(rest[0], rest[1], int(rest[2]))
    else:
        done = generate(rest[0], int(rest[1]))
    print(json.dumps({**done, "torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    main()
