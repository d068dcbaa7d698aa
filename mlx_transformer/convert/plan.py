"""From a checkpoint and a family to a plan: the config, and a rule for each parameter.

Every key of the checkpoint is used, verified to repeat another, known to mean nothing, or named in
an error; so is every parameter that stays without values. Nothing is dropped in silence.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Rule, choose, equal, expand, shape_of, squeezed
from mlx_transformer.convert.positions import MAX_FORMULA_LENGTH, recognise_sinusoids
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters

# Settings that no tensor shows: the file or the user must say them.
REQUIRED = ("h", "pad_id", "start_id", "eos_id")
# Parameters that the model leaves out when they repeat another one, follow a formula or are zeros.
LEFT_OUT = (
    "target_words.weight",
    "output.weight",
    "output_bias",
    "source_embedding.positions",
    "target_embedding.positions",
)


@dataclass(frozen=True)
class ConversionPlan:
    family: Family
    source: Source
    config: ModelConfig
    rules: dict[str, Rule]  # one for each parameter of the model
    shapes: dict[str, tuple[int, ...]]


def make_plan(family: Family, source: Source) -> ConversionPlan:
    """The config that the checkpoint implies, and where each parameter comes from."""
    table = _table(family, source)
    chosen = choose(table, source.tensors)
    for name in (
        "source_words.weight",
        f"{_stack(family, source)}.layers.0.feed_forward.w_1.weight",
    ):
        if name not in chosen:
            raise _lacking(family, source, _wanting(name, table))
        _matrix(name, source, chosen)
    config = _config(family, source, chosen)
    shapes = {name: array.shape for name, array in named_parameters(Transformer(config)).items()}
    _check_complete(family, source, table, chosen, shapes)
    return ConversionPlan(family, source, config, {name: chosen[name] for name in shapes}, shapes)


def uses(family: Family, source: Source) -> dict[str, str]:
    """What becomes of each key: the parameter it makes, `(repeats x)`, `(ignored)` or nothing."""
    use = {key: "(ignored)" if _ignored(family, key) else "" for key in source.tensors}
    use |= {key: f"(repeats {of})" for key, of in family.copies.items() if key in use}
    for name, rule in choose(_table(family, source), source.tensors).items():
        for key in rule.used:
            use[key] = f"{use[key]}, {name}" if use[key] and use[key][0] != "(" else name
    return use


def _table(family: Family, source: Source) -> dict[str, list[Rule]]:
    layers = {stack: source.count_layers(start) for stack, start in family.layers.items()}
    return expand({**family.table, **family.found(source)}, layers)


def _stack(family: Family, source: Source) -> str:
    """The stack whose first layer shows the sizes: the encoder, if there is one."""
    encoder = family.layers.get("encoder")
    return "encoder" if encoder and source.count_layers(encoder) else "decoder"


# The config


def _config(family: Family, source: Source, chosen: Mapping[str, Rule]) -> ModelConfig:
    """What the file says, then what its tensors show, then what the user says: the last wins."""
    said, told = family.settings(source), source.options.settings
    missing = [name for name in REQUIRED if name not in said and name not in told]
    if missing:
        raise InputError(
            f"the checkpoint does not say everything: give {' and '.join(missing)}", options=missing
        )
    known = {**said, **told}
    shown_by_tensors = {
        **_sizes(_stack(family, source), source, chosen, known["h"]),
        **_parts(_stack(family, source), chosen),
        "output_bias": _has_output_bias(source, chosen),
        **_ties(source, chosen),
        **_positions(source, chosen, known.get("position_offset", 0)),
    }
    fields = {**said, **shown_by_tensors, **told}
    if fields.get("positions") != "learned" and "max_length" in fields:
        fields["max_length"] = min(fields["max_length"], MAX_FORMULA_LENGTH)
    return ModelConfig(**fields)


def _sizes(stack: str, source: Source, chosen: Mapping[str, Rule], h: int) -> dict[str, Any]:
    matrix = partial(_matrix, source=source, chosen=chosen)
    layer = f"{stack}.layers.0"
    vocab_size, d_model = matrix("source_words.weight")
    target = next((n for n in ("target_words.weight", "output.weight") if n in chosen), None)
    values = matrix(f"{layer}.self_attention.out.weight")[1]
    keys = matrix(f"{layer}.self_attention.qkv.weight")[0] - values
    if type(h) is not int or h < 1 or values % h or keys % (2 * h):
        raise InputError(f"{h} heads do not divide the attention matrices", options=["h"])
    d_ff = matrix(f"{layer}.feed_forward.w_2.weight")[1]
    return {
        "vocab_size": vocab_size,
        "target_vocab_size": matrix(target)[0] if target else vocab_size,
        "d_model": d_model,
        "d_ff": d_ff,
        "gated_feed_forward": matrix(f"{layer}.feed_forward.w_1.weight")[0] == 2 * d_ff,
        "h": h,
        "d_k": keys // (2 * h),
        "d_v": values // h,
        "encoder_layers": _depth(chosen, "encoder"),
        "decoder_layers": _depth(chosen, "decoder"),
    }


def _matrix(name: str, source: Source, chosen: Mapping[str, Rule]) -> tuple[int, int]:
    """The shape of a parameter that must be a matrix."""
    if name not in chosen:
        raise InputError(f"the checkpoint has no tensor for {name}")
    shape = shape_of(chosen[name], source.tensors)
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{name} should be a matrix, but {chosen[name].keys[0]} makes {shape}")
    return shape[0], shape[1]


def _depth(chosen: Mapping[str, Rule], stack: str) -> int:
    return len({name.split(".")[2] for name in chosen if name.startswith(f"{stack}.layers.")})


def _parts(stack: str, chosen: Mapping[str, Rule]) -> dict[str, Any]:
    """Biases and norms exist in the model where they exist in the checkpoint."""
    embedding = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
    head = {"word_head": "transform"} if "word_head.dense.weight" in chosen else {}
    return head | {
        setting: name in chosen
        for setting, name in {
            "attention_bias": f"{stack}.layers.0.self_attention.out.bias",
            "feed_forward_bias": f"{stack}.layers.0.feed_forward.w_2.bias",
            "relative_per_layer": f"{stack}.relative.1.weight",
            "encoder_final_norm": "encoder.norm.weight",
            "decoder_final_norm": "decoder.norm.weight",
            "embedding_norm": f"{embedding}.norm.weight",
        }.items()
    }


def _has_output_bias(source: Source, chosen: Mapping[str, Rule]) -> bool:
    """One of zeros is none: transformers saves such a bias for models that never had one."""
    rule = chosen.get("output_bias")
    return rule is not None and any(source.tensors[key].numpy().any() for key in rule.keys)


def _ties(source: Source, chosen: Mapping[str, Rule]) -> dict[str, Any]:
    """Word matrices that hold the same numbers are stored once."""
    source_words = chosen["source_words.weight"]
    target_words = chosen.get("target_words.weight", source_words)
    output = chosen.get("output.weight", target_words)
    return {
        "shared_embeddings": equal(source_words, target_words, source.tensors),
        "tied_output": equal(target_words, output, source.tensors),
    }


def _positions(source: Source, chosen: Mapping[str, Rule], offset: int) -> dict[str, Any]:
    """A saved table is a formula that we know, or it is learned."""
    sides = ("source_embedding.positions", "target_embedding.positions")
    names = [name for name in sides if name in chosen]
    tables = ("encoder.relative.0.weight", "decoder.relative.0.weight")
    if relative := next((chosen[name] for name in tables if name in chosen), None):
        return {"relative_buckets": shape_of(relative, source.tensors)[0]}
    if not names:
        return {}
    length = max(_matrix(name, source, chosen)[0] for name in names) - offset
    formulas = [
        recognise_sinusoids(source.tensors[chosen[name].keys[0]])
        for name in names
        if chosen[name].added is None
    ]
    if not formulas:
        return {"positions": "learned", "max_length": length}
    if formulas[0] is not None and all(formula == formulas[0] for formula in formulas):
        return {"positions": "sinusoidal", "max_length": length, **formulas[0]}
    return {"positions": "learned", "max_length": length}


# Completeness


def _check_complete(
    family: Family,
    source: Source,
    table: Mapping[str, list[Rule]],
    chosen: Mapping[str, Rule],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    for key, original in family.copies.items():
        if not (source.has(key) and source.has(original)):
            continue
        if not equal(Rule((key,)), Rule((original,)), source.tensors):
            raise InputError(f"{key} should repeat {original}, but differs from it")
    problems = [_wanting(name, table) for name in shapes if name not in chosen]
    problems += [
        f"{name} should be {shape}, but {', '.join(chosen[name].keys)} make {made}"
        for name, shape in shapes.items()
        if name in chosen
        and chosen[name].keys
        and squeezed(shape) != (made := shape_of(chosen[name], source.tensors))
    ]
    used = {key for name in (*shapes, *LEFT_OUT) if name in chosen for key in chosen[name].used}
    problems += [
        f"{shown(source.original[key])} is not used by {family.title}"
        for key in source.tensors
        if key not in used and key not in family.copies and not _ignored(family, key)
    ]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError("; ".join(problems[:5]) + more, options=["list", "rename"])


def _lacking(family: Family, source: Source, wanting: str) -> InputError:
    """Perhaps it is there, under a name that nobody knows."""
    unused = [shown(source.original[key]) for key, use in uses(family, source).items() if not use]
    others = f"; no use is known for {', '.join(unused[:5])}" if unused else ""
    return InputError(
        f"this looks like {family.title}, but {wanting}{others}", options=["list", "rename"]
    )


def _wanting(name: str, table: Mapping[str, list[Rule]]) -> str:
    alternatives = " or ".join(", ".join(rule.keys) for rule in table.get(name, []) if rule.keys)
    return f"there is no {alternatives or 'key'} for {name}"


def _ignored(family: Family, key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in family.ignored)
