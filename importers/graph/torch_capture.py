# SPDX-License-Identifier: Apache-2.0
"""A module's forward pass, captured by torch.export, read node by node into a draft of our layers.

What is read is the training IR without decompositions, made functional: a convolution, a norm, a GRU is one
node, and nothing is changed in place. Numbers that follow from parameters and constants alone are computed
on the way; of every number it is known which element of which parameter it is, as long as elements are only
moved about.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from configs.dtypes import is_float
from configs.errors import InputError, UnsupportedLayerError
from configs.values import replace
from importers.graph.arranging import computed_word
from importers.graph.draft import NO_FORM, CannotTakeError, Draft, Problem
from importers.graph.node import Handler, Node, Unknown
from importers.graph.terms import Terms
from importers.graph.torch_projection import PROJECTED, projections
from importers.graph.views import Shape, View
from importers.graph.weights import Constant, WeightNumbers
from importers.ops import NEAREST_ATEN


@dataclass(frozen=True, slots=True)
class Held:
    """A torch tensor that does not depend on the input; `places`, `trained`, `made` as in `Constant`."""

    tensor: Any
    source: str = ""
    places: Any = None
    trained: bool = False
    made: View | None = None

    @property
    def constant(self) -> Constant:
        """As handlers see it: numbers of NumPy, floats of fp32."""
        tensor = self.tensor.detach()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        places = None if self.places is None else self.places.numpy()
        if self.made is not None and places is None:
            places = Constant.of(self.made, tensor.numpy()).places
        return Constant(tensor.numpy(), places, self.trained, self.made)


@dataclass(frozen=True, slots=True)
class Noise:
    """scale · b + shift, b drawn anew in each iteration: 1 with the probability `keep`, else 0.

    `keep` None: uniform in [0, 1). `draw` is one object per draw: noise of the same has the same numbers.
    """

    draw: object
    shape: Shape
    keep: float | None = None
    scale: float = 1.0
    shift: float = 0.0


class Moving:
    """In place of what a gradient goes through."""


class Aside:
    """What an op makes besides its result, statistics or a mask: nobody may read it."""


@dataclass(frozen=True, slots=True)
class Running:
    """Running statistics after a call of a norm: only a later call of it may read them."""

    layer: str
    start: Constant | None


_VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand")
_TURNS = ("permute", "transpose", "t", "mT", "numpy_T", "flip")
_PARTS = ("select", "slice", "narrow", "chunk", "split", "split_with_sizes", "unbind")
_SAME = ("clone", "contiguous", "alias")
_DETACHED = ("detach", "detach_")
MOVES = frozenset({*_VIEWS, *_TURNS, *_PARTS, *_SAME})
"""Ops that only move elements about: what they make of a parameter is still that parameter."""

SHAPES_ONLY = (
    *("zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
"""Ops that read the shape of an activation and nothing else."""

MOVES_STATISTICS = "_native_batch_norm_legit_functional"
"""A batch norm that returns its running statistics, for its next call."""

CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size")
"""Ops that make nothing."""

OF_WEIGHTS = ("conv1d", "conv2d", "linear")
"""Ops whose weights stay weights when a constant, or something computed of weights, goes through them."""

LOOKED_UP = ("embedding", "index", "index_select")
"""Ops that read rows of a weight, which stays one."""

SOFTMAXES = ("softmax", "_softmax")


def shape_of(node: Any) -> Shape | None:
    """Shape of what a node makes, if it is one tensor."""
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if hasattr(value, "shape") else None


def export_module(
    torch: Any, module: Any, inputs: tuple[Any, ...], where: str, taken_apart: Collection[str] = ()
) -> Any:
    """The functional training IR of the module in its mode; ops `taken_apart` are what they stand for.

    Raises InputError where torch.export cannot capture the module, with the reason in its first line.
    """
    disabled = logging.root.manager.disable
    # Of a decision that depends on the numbers torch prints the whole graph so far.
    stored = projections(torch)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), _no_thread_left(), stored:
        warnings.simplefilter("ignore")
        logging.disable()  # of shapes that do not fit torch logs a traceback besides the error
        try:
            program = torch.export.export(module, inputs)
            table = torch.export.default_decompositions() if taken_apart else {}
            apart = {op: table[op] for op in table if _name_of(op) in taken_apart}
            functional = program.run_decompositions(apart)
        except Exception as error:  # torch.export raises errors of many kinds, those of the module among them
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[0] if lines else type(error).__name__
            cure = (
                "use inputs with the shape and type that forward expects (--input), and a forward "
                "whose control flow does not depend on values"
            )
            if past := re.search(r"attribute: (?:(\S+)\.)?lifted_tensor", str(error)):
                part = f" of '{past[1]}'" if past[1] else ""
                reason = f"forward{part} uses .data of a tensor that is not a trained parameter"
                cure = "use the tensor itself, without .data"
            if missing := re.search(r"(\w+|<lambda>)(?:\.forward)?\(\) missing .*?: (.*)", reason):
                reason = f"'{missing[1]}' is called without the arguments {missing[2]}"
                cure = (
                    "give them default values or bind them with functools.partial; a loss gets the output of "
                    "the network and the labels"
                )
            raise InputError(
                f"torch.export cannot capture the module: {reason[:300]}", where=where, cure=cure
            ) from error
        finally:
            logging.disable(disabled)
    if stored.others:
        raise UnsupportedLayerError(
            "forward assigns to .data of a tensor that is not a trained parameter, which is not supported",
            where=where,
            cure="change the tensor without .data, or set requires_grad=True for the parameter",
        )
    moving = _moving(program)
    _refuse_unknown_sizes(program, moving, where)
    _refuse_stopped(program, moving, where)
    _refuse_changed(functional, where)
    return functional


@contextlib.contextmanager
def _no_thread_left() -> Iterator[None]:
    """A progress bar of torch leaves no thread: with one, processes could not be forked later."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield
        return
    before, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = before


def _refuse_changed(functional: Any, where: str) -> None:
    """Raise UnsupportedLayerError for a parameter that forward writes: no gradient would go to it."""
    specs = functional.graph_signature.output_specs
    changed = [item.target for item in specs if item.kind.name == "PARAMETER_MUTATION"]
    if changed:
        raise UnsupportedLayerError(
            f"forward changes the parameter '{changed[0]}' in place (max_norm of an embedding does), "
            "which is not supported",
            where=where,
            cure="remove max_norm, or assign the whole: weight.data = torch.renorm(weight.data, ...)",
        )


def _moving(program: Any) -> set[str]:
    """Names of the nodes that depend on inputs or parameters, and of these themselves."""
    kinds = {item.arg.name: item.kind.name for item in program.graph_signature.input_specs}
    moving = {name for name, kind in kinds.items() if kind in ("USER_INPUT", "PARAMETER")}
    for node in program.graph_module.graph.nodes:
        if any(before.name in moving for before in node.all_input_nodes):
            moving.add(node.name)
    return moving


def _open_sizes(made: Any) -> set[Any]:
    """Symbols in the sizes of what a node makes: of sizes that torch.export does not know."""
    parts = made if isinstance(made, list | tuple) else [made]
    sizes = [size for part in parts for size in getattr(part, "shape", ())]
    return {symbol for size in sizes if not isinstance(size, int) for symbol in size.node.expr.free_symbols}


def _refuse_unknown_sizes(program: Any, moving: Collection[str], where: str) -> None:
    """Raise UnsupportedLayerError for a tensor whose shape inputs or parameters decide by their numbers."""
    constant: set[Any] = set()  # sizes that constants alone decide, as those of a constant mask
    for node in program.graph_module.graph.nodes:
        sizes = _open_sizes(node.meta.get("val"))
        decides = node.all_input_nodes[1:] if _op_name(node) == "index" else node.all_input_nodes
        if not any(before.name in moving for before in decides):
            constant |= sizes
        if sizes - constant:
            raise UnsupportedLayerError(
                "the shape of the result depends on the numbers, which is not supported",
                where=_place(node, where),
                cure="use torch.where or a product with a mask, which have the shape of their input",
            )


def _refuse_stopped(program: Any, moving: Collection[str], where: str) -> None:
    """Raise UnsupportedLayerError for what stops gradients and is gone once the graph is functional."""
    for node in program.graph_module.graph.nodes:
        if node.name not in moving or not node.all_input_nodes:
            continue  # torch.tensor() in a forward is detached as well
        op = _op_name(node) if node.op == "call_function" else ""
        if op == "detach_" or (op == "wrap_with_set_grad_enabled" and not node.args[0]):
            how = "detach_()" if op == "detach_" else "torch.no_grad()"
            raise UnsupportedLayerError(
                f"{how} stops the gradient inside the network, which is not supported",
                where=_place(node, where),
                cure="remove it, and set requires_grad=False for the parameters of the layers before it",
            )


def capture(
    torch: Any,
    module: Any,
    inputs: tuple[Any, ...],
    trained: frozenset[str],
    where: str,
    dtype: str,
    handlers: Mapping[str, Handler],
    taken_apart: Collection[str] = (),
) -> tuple[Draft, View | Terms]:
    """The module as a draft of our layers, whose numbers are of `dtype`, and its output, or its loss.

    For `taken_apart` see `export_module`. `trained` are names of parameters that are trained, `handlers` read
    an op each. Raises InputError if torch.export fails, and UnsupportedLayerError that lists all ops that
    have no form here.
    """
    program = export_module(torch, module, inputs, where, taken_apart)
    graph = program.graph_module.graph
    signature = program.graph_signature
    state = {**dict(module.named_buffers(remove_duplicate=False)), **program.state_dict, **program.constants}
    targets = {item.arg.name: item for item in signature.input_specs if hasattr(item.arg, "name")}
    tensors = {name: item for name, item in state.items() if isinstance(item, torch.Tensor)}
    first_names = _first_names(module)
    places = WeightNumbers.of({name: tuple(item.shape) for name, item in tensors.items()})
    fed = [item.arg.name for item in signature.input_specs if item.kind.name == "USER_INPUT"]
    fed = [node.name for node in graph.nodes if node.name in fed and shape_of(node) is not None]
    nodes = sorted(graph.nodes, key=lambda node: (node.op != "placeholder", node.name not in fed))
    apart, wanted = None, frozenset(first_names.get(name, name) for name in _replaced(graph, targets))
    while apart != wanted:  # weights of which layers read parts, known once they have been read whole
        apart = wanted
        draft = Draft(where, dtype, places)
        reader = _Reader(torch, draft, handlers)
        made = reader.known
        for node in nodes:
            if node.op == "placeholder":
                item = targets.get(node.name)
                if item is not None and item.target is not None:
                    name = first_names.get(item.target, item.target)
                    made[node.name] = Unknown()
                    if name in tensors:
                        numbers = torch.from_numpy(places.places(name))
                        held = Held(tensors[name].detach(), name, numbers, name in trained)
                        reader.parameters[node.name] = held
                        whole = draft.one_sample(held.constant, name) if name in apart else None
                        made[node.name] = held if whole is None else replace(held, places=None, made=whole)
                    reader.moving |= {node.name} if name in trained else set()
                else:
                    made[node.name] = _input(draft, node, single=len(fed) == 1)
            elif node.op == "call_function":
                made[node.name] = reader.read(node)
                if isinstance(made[node.name], Unknown) and node.users:
                    made[node.name] = reader.stand_in(node)
            elif node.op == "get_attr":
                parameter = getattr(program.graph_module, str(node.target), None)
                made[node.name] = Held(parameter) if isinstance(parameter, torch.Tensor) else Unknown()
        wanted = apart | draft.share_weights()
    output = _output(draft, signature, made)
    _refuse_left_out(
        draft, trained & {first_names.get(name, name) for name in _read_parameters(graph, targets)}
    )
    draft.refuse_problems(sum(node.op == "call_function" for node in nodes))
    assert output is not None
    return draft, output


def _first_names(module: Any) -> dict[str, str]:
    """Name of a parameter -> the first of the names it has."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(item), name)
        for name, item in module.named_parameters(remove_duplicate=False)
    }


def _input(draft: Draft, node: Any, *, single: bool) -> Any:
    shape = shape_of(node)
    if shape is None:
        return node.meta.get("val")  # a number, None
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if len(shape) < 2 and not draft.inputs:
        draft.problems.append(
            Problem(
                node.name,
                "input",
                shape,
                "an input needs the batch first, then at least one dimension",
                "use an input of shape [batch, ...]",
            )
        )
        return Unknown()
    word = "input" if single or node.name == "input" else draft.free_name(node.name)
    draft.inputs.append(word)
    stored = shape if len(shape) > 1 else (*shape, 1)
    fed = draft.feed(word, stored, dtype if is_float(dtype) else "int32")
    return fed if stored == shape else fed.without_dim(1)


def _output(draft: Draft, signature: Any, made: Mapping[str, Any]) -> View | Terms | None:
    names = [item.arg.name for item in signature.output_specs if item.kind.name == "USER_OUTPUT"]
    results = [made.get(name) for name in names if name in made]
    what = f"forward returns {len(names)} tensors, but one is needed"
    cure = (
        "return only the tensor that the loss reads; in Python you can also pass loss=FUNCTION of all tensors"
    )
    if len(results) == 1 or draft.problems:
        if results and isinstance(results[0], View | Terms):
            return results[0]
        what = "the result of forward does not depend on the input"
        cure = "return a result that forward computes from the input"
    if draft.problems:
        return None
    raise InputError(what, where=draft.where, cure=cure)


class _Reader:
    """Reads the nodes of one capture in order; `known` is what each has made."""

    def __init__(self, torch: Any, draft: Draft, handlers: Mapping[str, Handler]) -> None:
        self.torch, self.draft, self.handlers = torch, draft, handlers
        self.known: dict[str, Any] = {}
        self.parameters: dict[str, Held] = {}
        """What placeholders hold, whole."""
        self.moving: set[str] = set()
        """Nodes through which a gradient goes to a trained parameter."""

    def _arguments(self, node: Any) -> dict[str, Any]:
        return _bound(node, lambda before: self.known.get(before.name, Unknown()))

    def stand_in(self, node: Any) -> Any:
        """In place of what could not be read, so that what lies behind it can be looked at too."""
        shape = shape_of(node)
        if shape is None:
            return Unknown()
        made_by = node.args[0] if node.target is operator.getitem else node
        if not _any(self._arguments(made_by), (View, Unknown)):
            return Held(self.torch.zeros(shape))
        word = self.draft.free_name(f"{node.name}.unknown")
        return self.draft.feed(word, shape or (1,), self.draft.dtype)

    def read(self, node: Any) -> Any:
        """What a node makes; `Unknown`, and a problem in the list, if it cannot be read."""
        op = _op_name(node)
        place = _place(node, self.draft.where)
        if op not in _DETACHED and any(before.name in self.moving for before in _sources_of(node)):
            self.moving.add(node.name)
        try:
            if node.target is operator.getitem:
                return self._item(node)
            if op in CHECKS:
                return Unknown()
            arguments = self._arguments(node)
            if _any(arguments, Unknown):
                return Unknown()
            if _any(arguments, Aside if op == MOVES_STATISTICS else (Aside, Running)):
                raise CannotTakeError(
                    "using an extra output (statistics, mask or norm) of another op is not supported",
                    "call each module once, and use only the first output",
                )
            drawn = op in self.handlers and self._draws(node)
            if op in SHAPES_ONLY or not (drawn or _any(arguments, (View, Terms, Noise))):
                return self._folded(op, node, arguments, place)
            result = self._handled(self._node(op, node, arguments, place), node)
            return result.settled() if isinstance(result, View) else result
        except CannotTakeError as error:
            self.draft.problems.append(
                Problem(node.name, op, shape_of(node), error.reason, error.nearest, place)
            )
        except Exception:
            if not self.draft.problems:  # behind a stand-in shapes need not fit
                reason = self._mistake(node)
                if not reason:
                    raise
                cure = "correct the call: an index, for example, must be a whole number within its dimension"
                self.draft.problems.append(Problem(node.name, op, shape_of(node), reason, cure, place))
        return Unknown()

    def _handled(self, site: Node, node: Any) -> Any:
        """What the handler of an op makes of it."""
        handler = self.handlers.get(site.op)
        if handler is None:
            raise CannotTakeError("pulptrain has no layer for this op", NEAREST_ATEN.get(site.op, NO_FORM))
        if "complex" in site.dtypes[1]:
            raise CannotTakeError(
                "complex numbers are not supported", "compute real and imaginary parts as two tensors"
            )
        result = handler(site)
        if isinstance(result, View) and result.shape != shape_of(node):
            raise AssertionError(f"{node.name}: {result.shape} instead of {shape_of(node)}")
        return result

    def _computed(self, site: Node, node: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        """Arithmetic on trained parameters: layers of one sample, which start with the numbers `result`."""
        views = site.arguments
        if site.op == PROJECTED:
            return self._projected(site, node, arguments["value"], result)
        if site.op in OF_WEIGHTS:
            operand = site.needed(site.first)
            view = self.draft.same_for_all(operand, site.name)
            if view is not None:
                return self._handled(replace(site, arguments={**views, site.first: view}), node)
            views = {**views, site.first: self.draft.one_sample(operand, site.name)}
        elif site.op not in LOOKED_UP:
            views = {key: self._one_sample(item) for key, item in arguments.items()}
        named = f"{site.name}_{site.op.strip('_')}"
        own = replace(site, name=named, arguments=views, held=site.arguments)
        made = self._handled(own, node)
        if isinstance(made, (list, tuple)):
            pairs = zip(made, result, strict=True)
            return [
                Held(item.detach(), trained=True, made=part) if isinstance(part, View) else Aside()
                for part, item in pairs
            ]
        return Held(result, trained=True, made=made)

    def _projected(self, site: Node, node: Any, value: Any, result: Any) -> Held:
        """What forward stores into a parameter: a layer puts it there before anything else reads it."""
        weight, made = self.parameters.get(node.args[0].name), None
        fits = weight is not None and isinstance(value, Held) and value.tensor.shape == weight.tensor.shape
        if weight is not None and fits and weight.trained:
            view = self.draft.one_sample(value.constant, site.name)
            word = computed_word(site, Constant.of(view, value.constant.value))
            made = site.layer(PROJECTED, (word,), {}, {"w": weight.constant}, suffix=f"_{PROJECTED}")
            whole = self.known[node.args[0].name].made.word
        if made is None or not any(whole in (layer.inputs or ()) for layer in self.draft.layers):
            why = "the assigned tensor has another shape, or is not computed from the trained parameter"
            if weight is None:
                why = "it is the second one of the parameter"
            raise CannotTakeError(
                f"this assignment to .data is not supported: {why}",
                "assign a tensor computed from the parameter, of its shape, once in forward; or use "
                "torch.nn.utils.parametrize, through which gradients go",
            )
        return Held(result, trained=True, made=made.without_dim(0))

    def _one_sample(self, item: Any) -> Any:
        """An argument of arithmetic on parameters; a trained one is a tensor of one sample, made once."""
        if isinstance(item, (list, tuple)):
            return [self._one_sample(part) for part in item]
        if not isinstance(item, Held) or not (item.trained or item.made):
            return _neutral(item)
        if item.made is not None and not (item.trained and item.places is None):
            raise CannotTakeError(
                "a weight computed from parameters is detached or expanded, which is not supported",
                "use the weight without detach or expand, or set requires_grad=False for the parameters",
            )
        return self.draft.one_sample(item.constant, item.source)

    def _node(self, op: str, node: Any, arguments: Mapping[str, Any], place: str) -> Node:
        """The node as a handler sees it."""
        made = node.meta["val"]
        several = made if isinstance(made, (tuple, list)) else [made]
        first = node.args[0].meta.get("val") if hasattr(node.args[:1] and node.args[0], "meta") else None
        return Node(
            self.draft,
            _layer_name(node, arguments),
            place,
            op,
            {key: _neutral(item) for key, item in arguments.items()},
            tuple(tuple(map(int, item.shape)) if hasattr(item, "shape") else None for item in several),
            frozenset(index for index in range(len(several)) if _is_used(node, index, len(several))),
            dtypes=(str(getattr(first, "dtype", "")), str(getattr(several[0], "dtype", ""))),
            into_softmax=_goes_into_softmax(node),
            several=isinstance(made, (tuple, list)),
            only_compared=op in _DETACHED and _only_compared(node),
            first=next(iter(arguments), 0),
            moving=frozenset(
                key
                for key, item in _bound(node, lambda before: before.name in self.moving and Moving()).items()
                if _any(item, Moving)
            ),
        )

    def _item(self, node: Any) -> Any:
        items = self.known[node.args[0].name]
        if isinstance(items, (Unknown, View, Held)):
            return Unknown()
        item = items[node.args[1]]
        return item.settled() if isinstance(item, View) else item

    def _draws(self, node: Any) -> bool:
        if _op_name(node) == "native_dropout":  # has numbers to work on
            return False
        return self.torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())

    def _for_every_sample(self, op: str, node: Any) -> bool:
        """Whether it repeats what is there once for every sample of the batch, and nothing else."""
        shape, fed = shape_of(node) or (), self.draft.tensors.get(self.draft.first_input)
        wanted = (fed.shape[0], *(1,) * (len(shape) - 1)) if shape and fed is not None else ()
        return op in ("repeat", "tile") and shape[:1] == wanted[:1] and tuple(node.args[1]) == wanted

    def _run(self, node: Any, how: Callable[[Held], Any] = lambda one: one.tensor) -> Any:
        """What PyTorch makes of a node, with zeros for activations, and `how` a constant counts."""

        def tensor_of(before: Any) -> Any:
            value = self.known[before.name]
            if isinstance(value, View):
                return self.torch.zeros(shape_of(before), dtype=before.meta["val"].dtype)
            return how(value) if isinstance(value, Held) else value

        arguments, options = map_nodes((node.args, node.kwargs), tensor_of)
        with self.torch.no_grad():
            return node.target(*arguments, **options)

    def _mistake(self, node: Any) -> str:
        """Why PyTorch does not compute a node either, which its capture has not seen; empty if it does."""
        if _any(self._arguments(node), (Unknown, Terms, Noise, Aside, Running)):
            return ""
        try:
            self._run(node)
        except Exception as error:  # of any kind, as the op likes
            return f"PyTorch refuses its arguments: {str(error).splitlines()[0]}"
        return ""

    def _folded(self, op: str, node: Any, arguments: Mapping[str, Any], place: str) -> Any:
        """A node that reads no activation, computed; more than moves of a trained parameter are layers."""
        torch = self.torch
        if self._draws(node):
            raise CannotTakeError("random numbers other than dropout are not supported", "use nn.Dropout")
        held = [
            self.known[one.name] for one in node.all_input_nodes if isinstance(self.known[one.name], Held)
        ]
        result = self._run(node)
        if op in _DETACHED:  # no gradient reaches what is stored into a parameter
            return held[0] if _only_replaces(node) else replace(held[0], tensor=result, trained=False)
        if op in MOVES and len(held) == 1 and held[0].places is not None:
            (one,) = held
            places = self._run(node, lambda one: one.places)
            if isinstance(result, (list, tuple)):
                pairs = zip(result, places, strict=True)
                return [replace(one, tensor=part, places=place) for part, place in pairs]
            return replace(one, tensor=result, places=places)
        wide = op == "expand" or self._for_every_sample(op, node)
        if wide and held[0].made is not None and held[0].places is None:
            places = self._run(node, lambda one: torch.from_numpy(one.constant.places))
            return replace(held[0], tensor=result, places=places)
        if op not in SHAPES_ONLY and any(one.trained or one.made for one in held):
            return self._computed(self._node(op, node, arguments, place), node, arguments, result)
        parts = result if isinstance(result, (list, tuple)) else [result]
        made = [Held(part) if isinstance(part, torch.Tensor) else part for part in parts]
        return made if parts is result else made[0]


def _replaced(graph: Any, targets: Mapping[str, Any]) -> list[str]:
    """Names of the parameters in whose place forward stores something."""
    weights = (node.args[0].name for node in graph.nodes if _op_name(node) == PROJECTED)
    return [targets[name].target for name in weights if name in targets]


def _only_replaces(node: Any) -> bool:
    """Whether its result, changed or not, is stored in place of a parameter, and goes nowhere else."""
    return bool(node.users) and all(
        _op_name(user) == PROJECTED or (user.op == "call_function" and _only_replaces(user))
        for user in node.users
    )


def _neutral(item: Any) -> Any:
    """An argument as handlers see it."""
    if isinstance(item, (list, tuple)):
        return [_neutral(part) for part in item]
    return item.constant if isinstance(item, Held) else item


def _is_used(node: Any, index: int, count: int) -> bool:
    """Whether anybody reads this one of several results."""
    for user in node.users:
        if user.target is not operator.getitem:
            return True
        if user.args[1] in (index, index - count):
            return bool(user.users)
    return False


def _goes_into_softmax(node: Any) -> bool:
    """Whether its result goes into softmaxes over its last dimension, and nowhere else."""
    users = [user for user in node.users if user.op == "call_function"]
    rank = len(shape_of(node) or ())
    return bool(rank and users) and all(
        _op_name(user) in SOFTMAXES and user.args[1] % rank == rank - 1 for user in users
    )


def _sources_of(node: Any) -> list[Any]:
    """The nodes a node is computed from."""
    if node.target is operator.getitem and _op_name(node.args[0]) == "broadcast_tensors":
        return [node.args[0].args[0][node.args[1]]]
    return list(node.all_input_nodes)


def _only_compared(node: Any) -> bool:
    """Whether its result goes into targets of losses, changed or not, and nowhere else."""
    return all(
        user.op == "call_function" and (_is_target(node, user) or _only_compared(user)) for user in node.users
    )


def _is_target(node: Any, user: Any) -> bool:
    """Whether a loss compares with it."""
    arguments = _bound(user, lambda before: before).items()
    return [name for name, item in arguments if item is node] == ["target"]


def _op_name(node: Any) -> str:
    return _name_of(node.target)


def _name_of(op: Any) -> str:
    """Without its overload."""
    named = getattr(op, "overloadpacket", op)
    return str(getattr(named, "__name__", named))


def map_nodes(arguments: Any, how: Callable[[Any], Any]) -> Any:
    """Arguments of a node with other things in place of the nodes in them."""
    from torch.fx.node import map_arg

    return map_arg(arguments, how)


def _bound(node: Any, how: Callable[[Any], Any]) -> dict[str, Any]:
    """Arguments by the names of the schema, defaults filled in; `how` says what stands for a node."""
    given, named = map_nodes((node.args, node.kwargs), how)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(index): item for index, item in enumerate(given)}
    names = [argument.name for argument in schema.arguments]
    defaults = {argument.name: argument.default_value for argument in schema.arguments}
    return {**defaults, **dict(zip(names, given, strict=False)), **named}


def _any(item: Any, kind: type | tuple[type, ...]) -> bool:
    if isinstance(item, Mapping):
        return any(_any(part, kind) for part in item.values())
    if isinstance(item, (list, tuple)):
        return any(_any(part, kind) for part in item)
    return isinstance(item, kind)


def _layer_name(node: Any, arguments: Mapping[str, Any]) -> str:
    """That of the module whose parameters it reads, or that calls it; else of the op."""
    for item in arguments.values():
        for part in item if isinstance(item, list) else [item]:
            if isinstance(part, Held) and part.source:
                path = part.source.rpartition(".")[0]
                return _as_name(path, node) if path else _op_name(node).strip("_")
    stack = node.meta.get("nn_module_stack") or {}
    for path, kind in reversed(list(stack.values())):
        if str(kind).startswith("torch.nn.modules.") and path and "container" not in str(kind):
            return _as_name(str(path), node)
        break
    return _op_name(node).strip("_")


def _as_name(path: str, node: Any) -> str:
    name = path.replace(".", "_")
    return name if not name[0].isdigit() else f"{_op_name(node).strip('_')}_{name}"


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _place(node: Any, where: str) -> str:
    """file:line of the module's own code, from the stack of the capture; `where` if there is none."""
    for file, line in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if f"{'torch'}/" not in file.replace("\\", "/") and "site-packages" not in file:
            return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    return where


def _read_parameters(graph: Any, targets: Mapping[str, Any]) -> set[str]:
    """Parameters that something reads with its gradient."""
    return {
        targets[node.name].target
        for node in graph.nodes
        if node.op == "placeholder" and node.name in targets
        if any(user.op != "output" and _op_name(user) not in _DETACHED for user in node.users)
    }


def _refuse_left_out(draft: Draft, read: Collection[str]) -> None:
    """A parameter that is read, and that no layer of ours trains, would silently stay as it is."""
    taken = {given.source for given in draft.sources.values() if given.trained}
    if draft.problems:
        return  # it may be read by what could not be taken
    for name in sorted(set(read) - taken):
        draft.problems.append(
            Problem(
                name,
                "parameter",
                None,
                "is trained, but reaches no op with a gradient",
                "set requires_grad=False",
            )
        )
