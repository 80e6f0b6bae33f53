#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the weights that main.cpp saved, with neither tutti nor PyTorch, and predicts with them.

    python predict.py                         the accuracy on the penguins that main.cpp did not train with
    python predict.py 39.1 18.7 181 3750      the species of a penguin: length and depth of its bill and length of
                                              its flippers in mm, mass in g

It needs the packages numpy and safetensors.
"""
import csv
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file

WEIGHTS = pathlib.Path("run/latest/model.safetensors")
COLUMNS = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]


def scores(weights, x):
    """A score for each species: (N, 4) to (N, 3)."""
    x = (x - weights["mean"]) / weights["deviation"]
    x = np.maximum(x @ weights["hidden.weight"].T + weights["hidden.bias"], 0)
    return x @ weights["output.weight"].T + weights["output.bias"]


def main():
    if len(sys.argv) not in (1, 1 + len(COLUMNS)):
        sys.exit("predict.py takes no number or four: " + ", ".join(COLUMNS))
    if not WEIGHTS.exists():
        sys.exit(f"There is no {WEIGHTS}; train first, in this folder: build/my_project")
    weights = load_file(WEIGHTS)
    with open("penguins.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "NA" not in [row[name] for name in COLUMNS]]
    classes = sorted({row["species"] for row in rows})

    if len(sys.argv) > 1:
        penguin = np.array([sys.argv[1:]], dtype=np.float32)
        print(classes[scores(weights, penguin).argmax()])
        return
    test = rows[::5]
    features = np.array([[row[name] for name in COLUMNS] for row in test], dtype=np.float32)
    labels = np.array([classes.index(row["species"]) for row in test])
    accuracy = (scores(weights, features).argmax(axis=1) == labels).mean()
    print(f"test accuracy: {100 * accuracy:.2f} %")


if __name__ == "__main__":
    main()
