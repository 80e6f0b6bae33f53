#!/usr/bin/env python3
"""Compares the losses and metrics of two runs, step by step, to four digits: compare.py A.jsonl B.jsonl"""
import json
import sys


def values(path):
    out = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["type"] == "metrics":
                for name, value in row["values"].items():
                    if name.startswith(("loss/", "metrics/")):
                        out[name, row["step"]] = value
    return out


def main():
    first, second = (values(path) for path in sys.argv[1:3])
    if not first or first.keys() != second.keys():
        sys.exit(f"the runs have {len(first)} and {len(second)} values, not the same ones")
    worst, where = max((abs(a - second[key]) / max(abs(a), abs(second[key]), 1e-30), key) for key, a in first.items())
    print(f"{len(first)} losses and metrics; they differ by {worst:.1e} at most, {where[0]} at step {where[1]}")
    sys.exit(0 if worst <= 5e-5 else "that is more than the fourth digit")


if __name__ == "__main__":
    main()
