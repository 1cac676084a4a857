# SPDX-License-Identifier: Apache-2.0
"""Defects of lowerings: kernels left out, called twice, or with other sizes than they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from configs.values import replace
from scheduler.tiles import tiling
from tools.timing_defects.change import Change, Replacement, around, registrar
from trainlib.ir.steps import KernelCall, Scratch, TileTask
from trainlib.kernels import catalogue, expressions
from trainlib.primitives.attention import softmax
from trainlib.primitives.contractions import conv_im2col, conv_nests, pointwise
from trainlib.primitives.lowering import calls, elementwise, forks, placed
from trainlib.primitives.lowering.axes import NOWHERE
from trainlib.primitives.lowering.calls import transpose_call
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.primitives.lowering.products import Each, Product

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "lowerings")

Calls = tuple[KernelCall, ...]


def _convolutions(result: str, other: Callable[[Calls], Calls]) -> list[Replacement]:
    """The tiles of convolutions by im2col that write `result`, with `other` kernel calls."""

    def wrong(right: Any, cut: Any) -> Any:
        task = right(cut)
        return task.but(calls=other(task.calls)) if cut.space.result == result else task

    return around(conv_im2col, "task", wrong)


def _twice(found: Sequence[KernelCall], kernel: str) -> Calls:
    return tuple(call for item in found for call in ((item,) * 2 if item.kernel == kernel else (item,)))


def _without(found: Sequence[KernelCall], kernel: str) -> Calls:
    return tuple(call for call in found if call.kernel != kernel)


@_defect("trainlib/kernels/catalogue.py", "a matmul is priced with half its K")
def _half_of_k() -> Sequence[Replacement]:
    def wrong(right: Any, *args: Any, k: int, **sizes: Any) -> Any:
        return right(*args, k=max(1, k // 2), **sizes)

    return around(catalogue, "matmul_work", wrong)


@_defect(
    "trainlib/primitives/lowering/calls.py",
    "a matmul is priced as if B were stored the other way (transposed or not)",
)
def _always_transposed() -> Sequence[Replacement]:
    def wrong(right: Any, kernel: str, codegen: str, *, trans_b: bool, **sizes: Any) -> Any:
        header = catalogue.LIBRARY.header(codegen, kernel)
        return right(kernel, codegen, trans_b=trans_b if header.trans_b is not None else not trans_b, **sizes)

    return around(calls.catalogue, "matmul_work", wrong)


@_defect("trainlib/kernels/expressions.py", "the part of a core is n // cores + 1, not n / cores rounded up")
def _one_more_per_core() -> Sequence[Replacement]:
    functions = {**expressions._FUNCTIONS, "ceildiv": lambda dividend, divisor: dividend // divisor + 1}
    return [(expressions, "_FUNCTIONS", functions)]


_defect("trainlib/primitives/contractions/conv_im2col.py", "a convolution unrolls its input twice")(
    lambda: _convolutions("y", lambda found: _twice(found, "im2row"))
)
_defect("trainlib/primitives/contractions/conv_im2col.py", "IG of a convolution lacks its block transpose")(
    lambda: _convolutions("dx", lambda found: _without(found, "blocktransp"))
)


@_defect("trainlib/primitives/contractions/conv_im2col.py", "WG of a convolution transposes dy needlessly")
def _needless_transpose() -> Sequence[Replacement]:
    def wrong(right: Any, cut: Any) -> Any:
        task = right(cut)
        if cut.space.result != "dw" or cut.op.attributes["layout"] == "HWC":
            return task
        co, positions = cut.count("co"), cut.count("ho", "wo")
        turn = transpose_call(cut.choice, Piece("dy[0]", (co, positions)), Piece("turned", (positions, co)))
        scratch = (*task.scratch, Scratch("turned", (positions, co)))
        return task.but(scratch=scratch, calls=(turn, *task.calls))

    return around(conv_im2col, "task", wrong)


_defect("trainlib/primitives/contractions/conv_calls.py", "the bias of a convolution is added in two forks")(
    lambda: _convolutions("y", lambda found: _twice(found, "conv_bias_fw"))
)


@_defect("trainlib/kernels/catalogue.py", "im2row skips the positions in the padding")
def _no_padding() -> Sequence[Replacement]:
    def wrong(right: Any, codegen: str, kernel: str, sizes: Any, *args: Any, **more: Any) -> Any:
        inside = {"rows_out": 0, "cols_out": 0} if kernel == "im2row_fw" else {}
        return right(codegen, kernel, {**sizes, **inside}, *args, **more)

    return around(catalogue, "team_work", wrong)


_defect("trainlib/primitives/contractions/conv_nests.py", "the block transpose moves one window per channel")(
    lambda: around(
        conv_nests, "blocktransp", lambda right, site, geometry, co, *args: right(site, geometry, 1, *args)
    )
)


@_defect("trainlib/primitives/lowering/products.py", "a vector is transposed like a matrix")
def _vectors_transposed() -> Sequence[Replacement]:
    def used(right: Any, product: Product, area: Any) -> Any:
        return {*right(product, area), product.turned or product.a}

    def run(right: Any, product: Product, area: Any, build: Any, at: Any = NOWHERE) -> Any:
        rows, inner = (prod(area.shape(*axes)) for axes in (product.rows, product.inner))
        if product.turned and inner == 1:
            vector = replace(area.held(product.a, at, (1, rows)), shape=(1, rows))
            build.transpose(vector, Piece(product.turned, (rows, 1)))
        right(product, area, build, at)

    return [*around(Product, "used", used), *around(Product, "run", run)]


_defect(
    "trainlib/primitives/contractions/pointwise.py",
    "a pointwise matmul is priced without the transposition of its operand",
)(lambda: around(pointwise, "turning", lambda right, *args: Each((), ())))


def _passes(name: str, times: dict[str, int]) -> list[Replacement]:
    """The passes over rows of a softmax, those of some nests so many times."""

    def wrong(right: Any, *args: Any) -> Any:
        return [fork for fork in right(*args) for _ in range(times.get(fork.nest, 1))]

    return around(softmax, name, wrong)


_defect("trainlib/primitives/attention/softmax.py", "softmax lacks its division")(
    lambda: _passes("softmax_passes", {"row_div": 0})
)
_defect("trainlib/primitives/attention/softmax.py", "IG of softmax sums every row twice")(
    lambda: _passes("softmax_gradient_passes", {"softmax_bw_sum": 2})
)


def _other_loop(nest: str, instead: str, arrays: int) -> list[Replacement]:
    """Where the loop `nest` over vectors belongs, `instead`, which has so many arrays, is priced."""

    def wrong(
        right: Any, choice: Any, name: str, elements: int, vectors: Any, *args: Any, **more: Any
    ) -> Any:
        if name != nest:
            return right(choice, name, elements, vectors, *args, **more)
        return right(choice, instead, elements, vectors[:arrays], *args, **{**more, "details": {}})

    return around(elementwise, "vector_call", wrong)


_defect("trainlib/primitives/optimizers/table.py", "SGD is priced as a copy")(
    lambda: _other_loop("sgd", "copy", 2)
)
_defect("trainlib/primitives/elementwise/table.py", "the gradient of ReLU is priced as its forward pass")(
    lambda: _other_loop("relu_bw", "relu_fw", 2)
)


@_defect("trainlib/primitives/lowering/elementwise.py", "a loop over vectors leaves its last element out")
def _last_element() -> Sequence[Replacement]:
    def wrong(right: Any, choice: Any, name: str, elements: int, *args: Any, **more: Any) -> Any:
        return right(choice, name, max(1, elements - 1), *args, **more)

    return around(elementwise, "vector_call", wrong)


@_defect("trainlib/primitives/pooling/pooling.py", "pooling leaves one channel out")
def _one_channel_less() -> Sequence[Replacement]:
    def wrong(right: Any, choice: Any, nest: str, sizes: Any, *args: Any, **more: Any) -> Any:
        fewer = {"ci": max(1, sizes["ci"] - 1)} if "ci" in sizes else {}
        return right(choice, nest, {**sizes, **fewer}, *args, **more)

    return around(placed, "kernel_call", wrong)


@_defect("trainlib/primitives/norms/norm_lowering.py", "WG of a norm runs the loop of FW")
def _norm_as_forward() -> Sequence[Replacement]:
    def wrong(right: Any, choice: Any, nest: str, sizes: Any, arrays: Any, *args: Any, **more: Any) -> Any:
        if nest != "instnorm_bw_param":
            return right(choice, nest, sizes, arrays, *args, **more)
        forward = {"X": arrays["X"], "Y": arrays["G"], "W": arrays["W"]}
        return right(choice, "instnorm_fw", sizes, forward, *args, **more)

    return around(forks, "kernel_call", wrong)


@_defect("scheduler/tiles/partial_sums.py", "partial sums of a cut K are added without a kernel")
def _sums_for_nothing() -> Sequence[Replacement]:
    def wrong(right: Any, tasks: Sequence[TileTask], *args: Any) -> Any:
        return tuple(new.but(calls=old.calls) for new, old in zip(right(tasks, *args), tasks, strict=True))

    return around(tiling, "accumulated", wrong)
