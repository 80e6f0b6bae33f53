#!/usr/bin/env python3
"""The peer of benchmark_tokenizer, and what trains its tokenizer.

    python tokenizers_side.py train TOKENIZER.JSON TEXT...
    python tokenizers_side.py encode TOKENIZER.JSON TEXT
"""
import json
import statistics
import sys
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def train(path, *texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(list(texts), trainers.BpeTrainer(vocab_size=50257, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(path)
    return {"vocabulary": tokenizer.get_vocab_size()}


def encode(path, text):
    text = open(text, encoding="utf-8", newline="").read()
    lines = text.removesuffix("\n").split("\n")
    times = {"whole": [], "lines": []}
    found = {}
    for _ in range(3):
        for what in times:
            tokenizer = Tokenizer.from_file(path)  # remembers nothing yet
            begin = time.process_time()
            if what == "whole":
                found["whole_tokens"] = len(tokenizer.encode(text).ids)
            else:
                found["line_tokens"] = sum(len(one.ids) for one in tokenizer.encode_batch(lines))
            times[what].append(time.process_time() - begin)
    return {**{what: statistics.median(values) for what, values in times.items()}, **found}


if __name__ == "__main__":
    print(json.dumps((train if sys.argv[1] == "train" else encode)(*sys.argv[2:])))
