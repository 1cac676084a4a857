# SPDX-License-Identifier: Apache-2.0
"""A user's script against the Python API: run, and checked by mypy."""

from __future__ import annotations

SCRIPT = """
import pulptrain as pt
soc = pt.soc("pulp-open").replace(cores=8, l1="128KiB")
model = pt.Sequential(pt.Conv2d(16, 3), pt.ReLU(), pt.Flatten(), pt.Linear(10),
                      input=(1, 8, 8), loss=pt.CrossEntropy(), optimizer=pt.SGD(0.01))
result = pt.run(model, soc, buffering="double")
print(result); result.cycles, result["conv1.FW"].stalls.load_use, result.peak.l1, result.by("layer")
result.to_pandas()
tuned = pt.tune(model, soc); again = pt.run(model, soc, schedule=tuned)
points = pt.explore(model, soc, sweep={"schedule": ["none", tuned], "buffering": ["single", "double"]})
errors = pt.validate("mm", "measured/mm.csv.gz", where={"kernel": "mm", "cores": 8, "n": 8})
result.gantt("g.png"); result.save("out/"); loaded = pt.load("out/")
"""
"""The script of the issue, each `...` replaced by something."""
