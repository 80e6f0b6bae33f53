# SPDX-License-Identifier: Apache-2.0
"""How much memory this process has."""


def kib(key):
    """VmRSS now, VmHWM at most since clear_peak()."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(key + ":"))


def clear_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
