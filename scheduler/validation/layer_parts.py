"""What the layer steps of KIND layer are made of: extents of a row, and passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arch.isa import TeamWork
from scheduler.validation.cases import Case
from scheduler.validation.placement import placed
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.team import team_work

GAP_BYTES = 16
"""Distance between the tensors of a layer in L1, assumed: how the layer programs placed them is not known.

Without a gap, vectors a multiple of the banks long would begin in one bank and collide in every iteration;
the measured ones did not. Any gap of 3 to 12 words gives the same errors.
"""

PUBLISHED_CODEGEN = "pulp-gcc7"
PUBLISHED_GAP_BYTES = 0
"""The published programs declare their tensors as static arrays, one after another. All sizes of the tutorial
network are multiples of 64 B, so every tensor begins in bank 0.
"""

FORK_WRAPPER_CYCLES = 14
"""Part of a modelled fork that is the call of a wrapper: 40 cycles (layer.csv, empty fork through a wrapper,
8 cores) less 26 (micro.csv, empty fork). Activations and the loops of loops.csv fork without it.
"""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a step: a kernel on the team, or on the master alone."""

    team: TeamWork
    fork: bool = True
    extra_cycles: int = 0
    """Time of the slowest core that no kernel text describes, such as waiting for the DMA."""
    called: bool = False
    """Whether a layer function calls it through the choice of the matmul kernel (`call_team`)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Extents of a layer as the row gives them, and those that follow."""

    ci: int
    hi: int
    wi: int
    co: int
    hk: int
    wk: int
    stride: int
    pad: int

    @property
    def elements(self) -> int:
        """Elements of the input."""
        return self.ci * self.hi * self.wi

    @property
    def ho(self) -> int:
        """Output rows."""
        return (self.hi + 2 * self.pad - self.hk) // self.stride + 1

    @property
    def wo(self) -> int:
        """Output columns."""
        return (self.wi + 2 * self.pad - self.wk) // self.stride + 1


Builder = Callable[[Case, Layer, str], list[Pass]]
"""(row, extents, matmul kernel) -> passes."""


def check_window(case: Case, layer: Layer) -> None:
    """Raise the error of the row if its extents describe no window that slides over an input."""
    fits = layer.hk <= layer.hi + 2 * layer.pad and layer.wk <= layer.wi + 2 * layer.pad
    if 0 in (layer.ci, layer.hi, layer.wi, layer.co, layer.hk, layer.wk, layer.stride) or not fits:
        raise case.error("the sizes describe no convolution")


def apart(case: Case, *sizes_bytes: int) -> tuple[int, ...]:
    """Addresses of the tensors of a layer from L1 address 0, with the gap of the codegen between them."""
    gap_bytes = PUBLISHED_GAP_BYTES if case.text("codegen") == PUBLISHED_CODEGEN else GAP_BYTES
    return placed(*(size_bytes + gap_bytes for size_bytes in sizes_bytes))[:-1]


def matmul_pass(case: Case, n: int, k: int, m: int, kernel: str, *, trans_b: bool = False) -> Pass:
    """The fp32 matmul of a layer step on the team of a row."""
    a, b, c = apart(case, 4 * n * k, 4 * k * m, 4 * n * m)
    team = matmul_work(
        kernel,
        case.text("codegen"),
        n=n,
        k=k,
        m=m,
        trans_b=trans_b,
        cores=case.number("cores"),
        a_address=a,
        b_address=b,
        c_address=c,
    )
    return Pass(team, called=True)


def call_team(case: Case) -> TeamWork:
    """What the master executes around a matmul of a layer: argument structs, choice of the kernel."""
    return team_work(case.text("codegen"), "layer_call", {}, {}, 1)
