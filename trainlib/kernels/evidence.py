# SPDX-License-Identifier: Apache-2.0
"""What stands behind the counts of a loop nest: measured, described or estimated.

A nest is that of one codegen, name and element size; formats of one size run the same instructions. Rules:

1. A nest that rows of `measured/` have is *measured*: its file says which (`measured:`), or its codegen lists
   it. Code that a codegen shares with its base is measured where the base's is.
2. A nest made by a written rule of one that is measured or described is *described*: the base's, transformed
   or in place of another compiler's, if any kernel of the codegen was measured; the form for 16-bit
   elements; the form for bytes, if it computes nothing (conversions were never measured).
3. Every other nest is *estimated*, a user's own without rows too.
4. All rows are of one machine and its simulator (`on_machine`). Anywhere else, timing profile rtl included,
   the instructions are the same but no row has their cycles: what is measured there is described here.
"""

from __future__ import annotations

from arch.spec.isa import FPU_OPS, Op
from configs.grades import DESCRIBED, ESTIMATED, MEASURED
from configs.values import Struct
from trainlib.kernels.library import CHANGED, LIBRARY, NARROWED, OWN, SHARED, KernelLibrary
from trainlib.kernels.nodes import codes


class NestEvidence(Struct, frozen=True):
    """The label of a nest, the `rows` that have it, and the `fitted` ones its counts were read off.

    Both are rows of the codegen `rows_of`.
    """

    label: str
    rows: str = ""
    rows_of: str = ""
    fitted: str = ""


def nest_evidence(codegen: str, name: str, library: KernelLibrary = LIBRARY) -> NestEvidence:
    """The evidence of a nest on the machine of the rows. Raises like `KernelLibrary.kernel`."""
    origin = library.origin(codegen, name)
    if origin.how == SHARED or origin.listed:
        base = nest_evidence(origin.codegen, origin.name, library)
        return NestEvidence(base.label, base.rows, codegen if origin.listed else base.rows_of, base.fitted)
    is_own = origin.how not in (CHANGED, NARROWED)
    fitted = library.rows(codegen, name, "fitted") if is_own else ""
    if is_own and (rows := library.rows(codegen, name)):
        return NestEvidence(MEASURED, rows, codegen, fitted)
    described = False
    if origin.name and nest_evidence(origin.codegen, origin.name, library).label != ESTIMATED:
        described = library.has_rows(codegen) if origin.how in (OWN, CHANGED) else True
        if origin.how == NARROWED and origin.element_bytes == 1:
            executed = codes(library.kernel(codegen, name).expander.nest.body)
            described = not any(code.instruction.op in (*FPU_OPS, Op.FDIV) for code in executed)
    return NestEvidence(
        DESCRIBED if described else ESTIMATED, rows_of=codegen if fitted else "", fitted=fitted
    )


def on_machine(label: str, *, measured_machine: bool) -> str:
    """The label on a machine: off the one the rows were taken on, nothing is measured."""
    return DESCRIBED if label == MEASURED and not measured_machine else label
