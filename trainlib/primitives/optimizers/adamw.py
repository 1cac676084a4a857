"""AdamW: Adam with the weight decay taken off the weight and not added to the gradient. See `adam`."""

from __future__ import annotations

from trainlib.primitives.optimizers.adam import adam_primitive

PRIMITIVE = adam_primitive("adamw", decoupled=True)
