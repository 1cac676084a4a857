# SPDX-License-Identifier: Apache-2.0
"""pulptrain: how many cycles one DNN training iteration takes on a PULP SoC, and where they go.

```python
import pulptrain as pt

soc = pt.soc("pulp-open").replace(cores=8, l1="128KiB")
result = pt.run("resnet8", soc)
print(result)
```

Names are imported when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pulptrain import interrupts

if interrupts.is_command():
    interrupts.begin()  # before anything else is imported

from pulptrain.environment import check_own_packages

__version__ = "0.2.0"

try:
    check_own_packages()
except ImportError as error:
    if interrupts.is_command():
        sys.exit(f"pulptrain: {error}")
    raise

LAYERS_MODULE = "pulptrain.layers"
"""Where layers, losses and optimizers are: every name of it is one of ours too."""

NAMES = {
    "soc": "pulptrain.chip",
    "Soc": "pulptrain.chip",
    "model": "pulptrain.network",
    "Model": "pulptrain.network",
    "Sequential": "pulptrain.network",
    "from_torch": "pulptrain.network",
    "run": "pulptrain.api",
    "tune": "pulptrain.api",
    "explore": "pulptrain.api",
    "validate": "pulptrain.api",
    "load": "pulptrain.api",
    "barvinn": "pulptrain.barvinn_run",
    "Result": "pulptrain.result",
    "OpResult": "pulptrain.op_result",
    "Stalls": "pulptrain.op_result",
    "Tuned": "pulptrain.tuned",
    "Explored": "pulptrain.explored",
    "Validated": "pulptrain.validated",
    "PulptrainError": "configs.errors",
    "InputError": "configs.errors",
    "DoesNotFitError": "configs.errors",
    "WrongNumbersError": "configs.errors",
}
"""What a user may call: name -> module it is in. A name here is also imported below, for type checkers."""

if TYPE_CHECKING:
    from configs.errors import DoesNotFitError as DoesNotFitError
    from configs.errors import InputError as InputError
    from configs.errors import PulptrainError as PulptrainError
    from configs.errors import WrongNumbersError as WrongNumbersError
    from pulptrain.api import explore as explore
    from pulptrain.api import load as load
    from pulptrain.api import run as run
    from pulptrain.api import tune as tune
    from pulptrain.api import validate as validate
    from pulptrain.barvinn_run import barvinn as barvinn
    from pulptrain.chip import Soc as Soc
    from pulptrain.chip import soc as soc
    from pulptrain.explored import Explored as Explored
    from pulptrain.layers import *  # noqa: F403
    from pulptrain.network import Model as Model
    from pulptrain.network import Sequential as Sequential
    from pulptrain.network import from_torch as from_torch
    from pulptrain.network import model as model
    from pulptrain.op_result import OpResult as OpResult
    from pulptrain.op_result import Stalls as Stalls
    from pulptrain.result import Result as Result
    from pulptrain.tuned import Tuned as Tuned
    from pulptrain.validated import Validated as Validated
else:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name.startswith("_"):
            raise AttributeError(f"module 'pulptrain' has no attribute {name!r}")
        if name not in NAMES and name[:1].islower():
            raise AttributeError(f"module 'pulptrain' has no attribute {name!r}")
        value = getattr(import_module(NAMES.get(name, LAYERS_MODULE)), name, None)
        if value is None:
            raise AttributeError(f"module 'pulptrain' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        from importlib import import_module

        # Not what this module imports for itself, nor the modules of the package.
        inner = {name for name in globals() if name.startswith("__")}
        return sorted({*inner, *NAMES, *import_module(LAYERS_MODULE).__all__})
