# SPDX-License-Identifier: Apache-2.0
"""Layers as BARVINN sees them: their geometry, and with integer weights, scalers and biases."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.timing import LANES
from configs.errors import ShapeError
from configs.values import Struct

Integers = NDArray[np.int64]
Kind = Literal["conv", "matmul", "pool"]

MOST_PIXELS = 1 << 22
"""Of a padded map: a hundred times what a unit holds."""

MOST_BITS = 16
"""Highest precision that jobs are made for; the register would hold 63."""


class TapRun(Struct, frozen=True):
    """The taps of one kernel axis that lie inside the map for a run of outputs: `first` tap, `taps` of them.

    `start` is the first output of the run, `count` how many there are.
    """

    start: int
    count: int
    first: int
    taps: int


class LayerShape(Struct, frozen=True):
    """A convolution, a matrix multiply (a convolution whose kernel is its whole map), or a max-pool.

    `kernel`, `strides`, `dilations` are (vertical, horizontal), `pads` (top, left, bottom, right).
    """

    name: str
    kind: Kind
    ci: int
    hi: int
    wi: int
    co: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    parameter: str = ""
    """Name of the weights, for files."""

    @property
    def blocks_in(self) -> int:
        """Input channels in blocks of 64."""
        return -(-self.ci // LANES)

    @property
    def blocks_out(self) -> int:
        """Output channels in blocks of 64."""
        return -(-self.co // LANES)

    @property
    def ho(self) -> int:
        """Output rows."""
        return self._output(0, self.hi)

    @property
    def wo(self) -> int:
        """Output columns."""
        return self._output(1, self.wi)

    def _output(self, axis: int, size: int) -> int:
        reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        return (size + self.pads[axis] + self.pads[axis + 2] - reach) // self.strides[axis] + 1

    @property
    def taps(self) -> int:
        """Input words of one plane per output: blocks times kernel."""
        return self.blocks_in * self.kernel[0] * self.kernel[1]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the layer itself, taps in the padding left out; 0 for a pool."""
        if self.kind == "pool":
            return 0
        rows = sum(window.count * window.taps for window in self.tap_runs(0))
        columns = sum(window.count * window.taps for window in self.tap_runs(1))
        return rows * columns * self.ci * self.co

    def check(self) -> None:
        """Raise `ShapeError` for sizes no layer has, and for outputs without a tap inside the map."""
        (top, left, bottom, right), numbers = self.pads, (*self.kernel, *self.strides, *self.dilations)
        if min(numbers) < 1 or min(self.pads) < 0:
            raise ShapeError(
                f"kernel {self.kernel} with strides {self.strides}, dilations {self.dilations} and pads "
                f"{self.pads} is not supported",
                where=self.name,
                cure="use pads of 0 or more, and kernel, strides and dilations of 1 or more",
            )
        if (self.hi + top + bottom) * (self.wi + left + right) > MOST_PIXELS:
            raise ShapeError(
                f"the padded input map is too large: {self.hi + top + bottom} x {self.wi + left + right} "
                "pixels",
                where=self.name,
                cure=f"use at most {MOST_PIXELS} pixels",
            )
        if self.ho < 1 or self.wo < 1:
            raise ShapeError(
                f"the kernel {self.kernel} is larger than the padded input map of {self.hi} x {self.wi}",
                where=self.name,
                cure="use a larger input",
            )
        for axis in (0, 1):
            for window in self.tap_runs(axis):
                if window.taps < 1:
                    raise ShapeError(
                        f"output {window.start} along axis {axis} depends on padding only",
                        where=self.name,
                        cure="use less padding",
                    )

    def tap_runs(self, axis: int) -> list[TapRun]:
        """Runs of neighbouring outputs whose kernels are cut alike by the edges, in order."""
        size = (self.hi, self.wi)[axis]
        runs: list[TapRun] = []
        for output in range((self.ho, self.wo)[axis]):
            origin = output * self.strides[axis] - self.pads[axis]
            step = self.dilations[axis]
            first = max(0, -(origin // step))
            last = min(self.kernel[axis] - 1, (size - 1 - origin) // step)
            if runs and (runs[-1].first, runs[-1].taps) == (first, last - first + 1):
                previous = runs.pop()
                runs.append(TapRun(previous.start, previous.count + 1, first, previous.taps))
            else:
                runs.append(TapRun(output, 1, first, last - first + 1))
        return runs


class IntegerLayer(Struct, frozen=True):
    """A layer in integers, as the units compute it.

    y = planes `msb_index` to `msb_index - output_bits + 1` of max(0, acc * scaler + bias) with `relu`, of acc
    * scaler + bias without; acc is the sum of weights * x. `weights` is int64 [co, ci, kh, kw] (a pool has
    none), `scaler` and `bias` int64 [co]. `sign_index` is a plane that holds the sign of every value before
    the ReLU; None: any may be as long as the register.
    """

    shape: LayerShape
    weights: Integers
    scaler: Integers
    bias: Integers
    relu: bool
    msb_index: int
    input_bits: int
    input_signed: bool
    weight_bits: int
    weight_signed: bool
    output_bits: int
    output_signed: bool
    sign_index: int | None = None

    @property
    def uses_scalers(self) -> bool:
        """Whether its scalers come from memory, not from the register."""
        return bool((self.scaler != self.scaler[0]).any())

    @property
    def uses_biases(self) -> bool:
        """Whether it adds biases."""
        return bool(self.bias.any())


def pool_layer(shape: LayerShape, bits: int, *, is_signed: bool, where: str = "") -> IntegerLayer:
    """A max-pool: every channel times one, compared, no bit lost. Raises `ShapeError` for signed values."""
    if is_signed:
        raise ShapeError(
            "max-pooling of negative values is not supported: the hardware compares with 0",
            where=where or shape.name,
            cure="put a ReLU before or after it",
        )
    return IntegerLayer(
        shape,
        np.zeros((0, 0, 0, 0), np.int64),
        np.ones(shape.co, np.int64),
        np.zeros(shape.co, np.int64),
        relu=True,
        msb_index=bits - 1,
        input_bits=bits,
        input_signed=False,
        weight_bits=1,
        weight_signed=False,
        output_bits=bits,
        output_signed=False,
    )
