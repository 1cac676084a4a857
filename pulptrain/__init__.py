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

from pulptrain.process import interrupts

if interrupts.is_command():
    interrupts.begin()  # before anything else is imported

from pulptrain.process.environment import check_own_packages

try:
    check_own_packages()
except ImportError as error:
    if interrupts.is_command():
        sys.exit(f"pulptrain: {error}")
    raise

from configs.version import VERSION

__version__ = VERSION

LAYERS_MODULE = "pulptrain.inputs.layers"
"""Where layers, losses and optimizers are: every name of it is one of ours too."""

_BY_MODULE = {
    "pulptrain.inputs.chip": "soc Soc",
    "pulptrain.python.network": "model Model Sequential from_torch",
    "pulptrain.python.api": "run tune fit explore validate load compare speed_up what_if deploy",
    "pulptrain.python.result": "Result",
    "pulptrain.python.op_result": "OpResult Stalls",
    "pulptrain.python.answers": "Tuned Fitted Explored Validated",
    "pulptrain.deploying.deployed": "Deployed",
    "pulptrain.predicting.gains": "Gains",
    "traces.compared.comparison": "Comparison",
    "traces.compared.residuals": "Residuals",
    "traces.speed_up": "SpeedUp",
    "barvinn.run": "barvinn",
    "configs.errors": "PulptrainError InputError DoesNotFitError WrongNumbersError",
}

NAMES = {name: module for module, names in _BY_MODULE.items() for name in names.split()}
"""What a user may call: name -> module it is in. A name here is also imported below, for type checkers."""

if TYPE_CHECKING:
    from barvinn.run import barvinn as barvinn
    from configs.errors import DoesNotFitError as DoesNotFitError
    from configs.errors import InputError as InputError
    from configs.errors import PulptrainError as PulptrainError
    from configs.errors import WrongNumbersError as WrongNumbersError
    from pulptrain.deploying.deployed import Deployed as Deployed
    from pulptrain.inputs.chip import Soc as Soc
    from pulptrain.inputs.chip import soc as soc
    from pulptrain.inputs.layers import *  # noqa: F403
    from pulptrain.predicting.gains import Gains as Gains
    from pulptrain.python.answers import Explored as Explored
    from pulptrain.python.answers import Fitted as Fitted
    from pulptrain.python.answers import Tuned as Tuned
    from pulptrain.python.answers import Validated as Validated
    from pulptrain.python.api import compare as compare
    from pulptrain.python.api import deploy as deploy
    from pulptrain.python.api import explore as explore
    from pulptrain.python.api import fit as fit
    from pulptrain.python.api import load as load
    from pulptrain.python.api import run as run
    from pulptrain.python.api import speed_up as speed_up
    from pulptrain.python.api import tune as tune
    from pulptrain.python.api import validate as validate
    from pulptrain.python.api import what_if as what_if
    from pulptrain.python.network import Model as Model
    from pulptrain.python.network import Sequential as Sequential
    from pulptrain.python.network import from_torch as from_torch
    from pulptrain.python.network import model as model
    from pulptrain.python.op_result import OpResult as OpResult
    from pulptrain.python.op_result import Stalls as Stalls
    from pulptrain.python.result import Result as Result
    from traces.compared.comparison import Comparison as Comparison
    from traces.compared.residuals import Residuals as Residuals
else:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        is_layer = not name.startswith("_") and not name[:1].islower()
        module = NAMES.get(name, LAYERS_MODULE if is_layer else "")
        value = getattr(import_module(module), name, None) if module else None
        if value is None:
            raise AttributeError(f"module 'pulptrain' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        from importlib import import_module

        # Not what this module imports for itself, nor the modules of the package.
        inner = {name for name in globals() if name.startswith("__")}
        return sorted({*inner, *NAMES, *import_module(LAYERS_MODULE).__all__})
