# SPDX-License-Identifier: Apache-2.0
"""From an action to the call of a C function: what is said where that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.spec.isa import TeamWork
from arch.spec.program import Compute, Effect, Place
from configs.errors import ConfigError, InputError
from deploy.calls.call import Pointer, c_calls, in_format, read_source, sources
from shared.exported import checked, exported
from trainlib.ir.graph import Op
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.team import Array, team_work

OP = Op("fc.FW", "fc", "linear", "FW", (), ())
MATMUL = matmul_work("mm", "clang-xpulp", 2, 3, 4, False, 8, 64, 128, 192)


def action(team: TeamWork, *places: Place, **details: object) -> Compute:
    return Compute(0, team=team, effect=Effect(places[:-1], places[-1:], tuple, details))


def test_a_matmul_has_its_addresses_strides_and_sizes() -> None:
    (call,) = c_calls(action(MATMUL, Place("l1", 192, (2, 4))), OP)
    fields = dict(call.fields)
    assert (call.kernel, call.struct) == ("mm", "matmul")
    assert [fields[name] for name in "ABC"] == [Pointer(place, "float") for place in (64, 128, 192)]
    assert fields["B_s"] == (4, 1)
    assert [fields[name] for name in ("N", "K", "M", "trans_b", "accumulate")] == [2, 3, 4, 0, 0]


def test_a_gradient_that_is_a_vector_and_one_that_is_a_matrix_share_their_square_sum(tmp_path: Path) -> None:
    model = tmp_path / "model.yaml"
    model.write_text(
        "{name: clipped, input: {shape: [7]}, loss: mse, batch: 2,"
        " optimizer: {name: sgd, learning_rate: 0.01, clip_norm: 1},"
        " layers: [{name: fc, type: linear, out_features: 3, bias: true}]}"
    )
    text = exported(str(model), iterations=1).project().files["kernels/square_sum.c"]
    assert "arg->Y[r] = sum1;" in str(text)


def test_an_array_that_a_call_is_not_given_is_nowhere(tmp_path: Path) -> None:
    """The bias of a direct convolution was at 0 of L1, where this op has no buffer."""
    model = tmp_path / "model.yaml"
    model.write_text(
        "{name: direct, input: {shape: [1, 8, 8]}, loss: mse, optimizer: {name: sgd, learning_rate: 0.01},"
        " layers: [{name: conv, type: conv2d, out_channels: 8, kernel: 3, padding: 1, bias: false}]}"
    )
    run = exported(str(model), 1, resident="auto", variants=("conv.FW=none",))
    assert ".D = 0," in run.project().files["network.c"].decode()


@pytest.mark.needs_gcc
@pytest.mark.parametrize("layer", ["position", "absolute"])
def test_integers_are_converted_where_a_layer_computes_with_them(layer: str, tmp_path: Path) -> None:
    model = tmp_path / "model.yaml"
    model.write_text(
        "{name: integers, inputs: {a: {shape: [6], classes: 9}, b: {shape: [6]}}, loss: mse,"
        " optimizer: {name: sgd, learning_rate: 0.01},"
        f" layers: [{{name: of_a, type: {layer}, inputs: [a]}},"
        " {name: of_b, type: linear, out_features: 6, inputs: [b]},"
        " {name: both, type: add, inputs: [of_a, of_b]}]}"
    )
    ended = checked(exported(str(model), 1).project(), tmp_path / "net", "SEEDS=1")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_code_that_computes_nothing_is_no_call() -> None:
    assert c_calls(action(team_work("clang-xpulp", "layer_call", {}, {}, 1), Place("l1", 0, (1,))), OP) == ()


@pytest.mark.parametrize(
    ("team", "dtype", "message"),
    [
        (TeamWork("mine", ()), "float32", "kernel mine has no C source"),
        (MATMUL, "float8_e5m2", "kernel mm has no C source for dtype float8_e5m2"),
    ],
)
def test_what_has_no_source_is_refused_by_name(team: TeamWork, dtype: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        c_calls(action(team, Place("l1", 192, (2, 4), dtype)), OP)


def test_a_field_nothing_is_known_of_is_a_defect_with_its_name() -> None:
    team = team_work("clang-xpulp", "set_to_value", {"elements": 4}, {"Y": Array(64)}, 8)
    with pytest.raises(ConfigError, match="'value'") as caught:
        c_calls(action(team, Place("l1", 64, (4,))), OP)
    assert caught.value.where == "set_to_value, fc.FW"


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        ("struct other { int N; };", "the struct of arguments of f is missing"),
        ("struct s { double x; };", "cannot read the struct field 'double x'"),
    ],
)
def test_a_source_whose_arguments_cannot_be_read_is_refused(struct: str, message: str) -> None:
    body = "void f(const void *args)\n{\n    PT_ARGUMENTS(s, g);\n}\n"
    with pytest.raises(ConfigError, match=message):
        read_source("f.c", f"/* arguments */\n{struct}\n/* end */\n{body}")


def test_sources_are_those_of_the_kernels_and_headers_with_their_structs() -> None:
    texts = sources(["mm", "mm_M", "copy"])
    assert set(texts) >= {"matmul.c", "vectors.c", "kernels.h", "kernel.h"}
    assert "pooling.c" not in texts
    assert "struct matmul {" in texts["kernels.h"]
    assert "struct matmul {" not in texts["matmul.c"]


def test_a_kernel_of_one_statement_is_a_line() -> None:
    lines = "".join(f"PT_KERNEL({name}, s, step(g, {number}))\n" for number, name in enumerate("fh"))
    source = in_format(f"/* arguments */\nstruct s {{ int N; }};\n/* end */\n{lines}", "f.c")
    function = "void {}(const void *args)\n{{\n    PT_ARGUMENTS(s, g);\n    step(g, {});\n}}\n"
    assert source.text == "\n".join(function.format(name, number) for number, name in enumerate("fh"))
    assert source.kernels == {"f": "s", "h": "s"}
