"""Tables of names: which of their tensors make which parameter of ours.

A family writes down a `Table`. On the left is a parameter of `model.Transformer`, on the right the
key of the tensor that becomes it, or a `Rule` when there is more to do than copy, or a list of
alternatives of which the first that the checkpoint has is taken. In both columns

    {i}   is the number of the layer, from 0 ({n}: from 1)
    *     is `weight` and `bias`, in one line for both

    "encoder.layers.{i}.feed_forward.w_1.*": "encoder.layers.{i}.linear1.*"
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mlx_transformer.convert.tensors import Tensor, cast
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import FLOATS


@dataclass(frozen=True)
class Rule:
    """Tensors to be stacked row upon row, each transposed, cut or scaled before."""

    keys: tuple[str, ...]
    added: str | None = None  # a key whose first row is added to every row
    transpose: bool = False
    rows: tuple[int, int, int] | None = None  # (first, last, of how many) equal parts
    scale: Callable[[int], float] | None = None  # factor, from the length of the last axis
    extra: float | None = None  # the value of more rows at the end, for a padding id
    extra_rows: int = 1

    def rename(self, change: Callable[[str], str]) -> "Rule":
        added = None if self.added is None else change(self.added)
        return replace(self, keys=tuple(map(change, self.keys)), added=added)

    @property
    def used(self) -> tuple[str, ...]:
        """All keys that it reads."""
        return self.keys if self.added is None else (*self.keys, self.added)


# The bias of a word that was added for padding: never the best one, and it fits into a float16.
NEVER = -10_000.0
# The last alternative where a checkpoint may lack a bias that our model always has.
ZEROS = Rule(())

Line = str | Rule | list[str | Rule]
Table = Mapping[str, Line]
Tensors = Mapping[str, Tensor]


def stack(*keys: str) -> Rule:
    """Several matrices in one: q, k and v are one product for us."""
    return Rule(keys)


def transposed(*keys: str) -> Rule:
    """Matrices written (in, out)."""
    return Rule(keys, transpose=True)


def part(key: str, first: int, last: int, of: int = 3) -> Rule:
    """Rows of a matrix in which `of` equal ones are packed: those from `first` up to `last`."""
    return Rule((key,), rows=(first, last, of))


def plus_first_row(key: str, added: str) -> Rule:
    """What is the same for every row: the vector of a text's type, where all have the first."""
    return Rule((key,), added=added)


def with_extra_rows(key: str, value: float, count: int = 1) -> Rule:
    """More words than the checkpoint has, where it has none that could mean padding."""
    return Rule((key,), extra=value, extra_rows=count)


def under(ours: str, theirs: str, table: Table) -> dict[str, Line]:
    """A table for what lies inside of a layer, put below the layer's two names."""
    return {
        ours + name: [rule.rename(lambda key: theirs + key) for rule in _rules(line)]
        for name, line in table.items()
    }


def _rules(line: Line) -> list[Rule]:
    entries = line if isinstance(line, list) else [line]
    return [Rule((entry,)) if isinstance(entry, str) else entry for entry in entries]


def expand(table: Table, layers: Mapping[str, int]) -> dict[str, list[Rule]]:
    """The table for stacks of so many layers, with every `{i}` and `*` written out."""
    rules: dict[str, list[Rule]] = {}
    for name, line in table.items():
        depth = layers[name.partition(".")[0]] if "{i}" in name else 1
        for i in range(depth):
            for kind in ("weight", "bias") if "*" in name else ("",):
                change = _writing_out(i, kind)
                rules[change(name)] = [rule.rename(change) for rule in _rules(line)]
    return rules


def _writing_out(i: int, kind: str) -> Callable[[str], str]:
    return lambda text: (
        text.replace("{i}", str(i)).replace("{n}", str(i + 1)).replace("*", kind or "*")
    )


def choose(rules: Mapping[str, list[Rule]], tensors: Tensors) -> dict[str, Rule]:
    """For each parameter the first alternative whose tensors are all there, if any is."""
    chosen: dict[str, Rule] = {}
    for name, alternatives in rules.items():
        for rule in alternatives:
            # ZEROS, a rule without keys, stands in for a bias only.
            if all(key in tensors for key in rule.used) and (rule.keys or name.endswith("bias")):
                chosen[name] = rule
                break
    return chosen


def shape_of(rule: Rule, tensors: Tensors) -> tuple[int, ...]:
    """The shape that the rule gives, axes of length 1 left out; nothing is read for it."""
    shapes = [_piece_shape(rule, tensors[key]) for key in rule.keys]
    if not shapes or len({shape[1:] for shape in shapes}) > 1 or () in shapes[1:]:
        raise InputError(f"{', '.join(rule.keys)} have shapes {shapes} and cannot be stacked")
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()


def _piece_shape(rule: Rule, tensor: Tensor) -> tuple[int, ...]:
    shape = squeezed(tensor.shape)
    if rule.transpose:
        shape = shape[::-1]
    if rule.rows is not None and shape:
        first, last, of = rule.rows
        shape = (shape[0] // of * (last - first), *shape[1:])
    if rule.extra is not None and shape:
        shape = (shape[0] + rule.extra_rows, *shape[1:])
    return shape


def squeezed(shape: Iterable[int]) -> tuple[int, ...]:
    """Without axes of length 1: biases come as (1,n), position tables as (1,n,d) or (n,1,d)."""
    return tuple(n for n in shape if n != 1)


def make(rule: Rule, tensors: Tensors, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The parameter itself, bfloat16 in its bits."""
    if not rule.keys:
        values = np.zeros(shape, np.float32)
        if rule.extra is not None:
            values[-rule.extra_rows :] = rule.extra
        return cast(values, "float32", dtype)
    if rule.added is not None:
        return cast(_sum(rule, tensors), "float32", dtype).reshape(shape)
    pieces = [_piece(rule, tensors[key], dtype) for key in rule.keys]
    values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return values.reshape(shape)


def _sum(rule: Rule, tensors: Tensors) -> np.ndarray:
    assert rule.added is not None
    plain = replace(rule, added=None)
    rows = [_piece(plain, tensors[key], "float32") for key in (rule.keys[0], rule.added)]
    return rows[0] + rows[1].reshape(-1, rows[0].shape[-1])[0]


def _piece(rule: Rule, tensor: Tensor, dtype: str) -> np.ndarray:
    values, stored = tensor.numpy(), tensor.dtype
    values = values.reshape(squeezed(values.shape))
    if rule.transpose:
        values = values.T
    if rule.rows is not None:
        first, last, of = rule.rows
        size = len(values) // of
        values = values[first * size : last * size]
    if rule.scale is not None:
        values, stored = cast(values, stored, "float32"), "float32"
        values = values * np.float32(rule.scale(values.shape[-1]))
    values = cast(values, stored, dtype)
    if rule.extra is not None:
        rows = np.full((rule.extra_rows, *values.shape[1:]), rule.extra, np.float32)
        values = np.concatenate([values, cast(rows, "float32", dtype)])
    return values


def stored_dtype(rule: Rule, tensors: Tensors, wanted: str | None) -> str:
    """`wanted`, or else the checkpoint's own precision; float64 is more than MLX computes with."""
    floats = {*FLOATS, "float64"}
    dtypes = {tensors[key].dtype for key in rule.used}
    if not rule.keys:  # zeros take the dtype of the other tensors
        dtypes = {tensor.dtype for tensor in tensors.values()} & floats
    if odd := dtypes - floats:
        raise InputError(f"{rule.keys[0]} is {odd.pop()}: weights must be floating-point numbers")
    if wanted is not None:
        return wanted
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(FLOATS) else "float32"


def equal(a: Rule, b: Rule, tensors: Tensors) -> bool:
    """Whether two rules give the same numbers, as tied matrices do."""
    same_work = replace(a, keys=()) == replace(b, keys=())
    if same_work and [tensors[key] for key in a.keys] == [tensors[key] for key in b.keys]:
        return True
    shape = shape_of(a, tensors)
    if shape != shape_of(b, tensors):
        return False
    first, second = (
        make(rule, tensors, shape, stored_dtype(rule, tensors, None)) for rule in (a, b)
    )
    return first.dtype == second.dtype and np.array_equal(first, second)
