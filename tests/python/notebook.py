# SPDX-License-Identifier: Apache-2.0
"""Runs the cells of a notebook one after another, as "Run All" does, without Jupyter and its thirty packages.

    notebook.py FILE

Cells are plain Python. None may have an output stored, which would be that of another run.
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    notebook = json.load(file)
if notebook["nbformat"] != 4 or not notebook["cells"]:
    sys.exit(f"{sys.argv[1]} is no notebook of format 4")
names = {"__name__": "__main__"}
count = 0
for number, cell in enumerate(notebook["cells"], 1):
    if cell["cell_type"] != "code":
        continue
    if cell["outputs"] or cell["execution_count"] is not None:
        sys.exit(f"cell {number} of {sys.argv[1]} has outputs; clear them before it is saved")
    exec(compile("".join(cell["source"]), f"{sys.argv[1]}, cell {number}", "exec"), names)
    count += 1
print(f"{count} cells of {sys.argv[1]} ran")
