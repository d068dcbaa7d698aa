"""Small random models that CTranslate2's own library writes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.model_spec import visit_spec

WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(40))]
D_MODEL, D_FF = 16, 24
# The shapes of weights, by what their names end in.
SHAPES = {
    r"self_attention/linear_0/weight": (3 * D_MODEL, D_MODEL),
    r"/attention/linear_1/weight": (2 * D_MODEL, D_MODEL),
    r"attention/linear_\d/weight": (D_MODEL, D_MODEL),
    r"ffn/linear_0(_noact)?/weight": (D_FF, D_MODEL),
    r"ffn/linear_1/weight": (D_MODEL, D_FF),
    r"gamma|beta": (D_MODEL,),
    r"encodings": (64, D_MODEL),
    r"relative_position_(keys|values)": (9, D_MODEL // 2),
}


def write_model(
    directory: Path,
    *,
    quantization: str | None = None,
    words: tuple[list[str], list[str]] | None = None,
    table: bool = True,
    projection_bias: bool = True,
    from_zero: bool = False,
    scale: bool | float = True,
    outputs_scale: float | None = None,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A directory with random weights; `words` are two vocabularies, else one is shared."""
    spec = TransformerSpec.from_config((2, 1), 2, **options)
    generator = np.random.default_rng(0)
    sides = words or (WORDS, WORDS)
    matrices = [generator.normal(size=(len(side), D_MODEL)).astype("f4") / 2 for side in sides]
    spec.encoder.embeddings[0].weight = matrices[words is None]
    spec.decoder.embeddings.weight = matrices[1]
    spec.decoder.projection.weight = matrices[1] * (2 if words else 1)
    if projection_bias:
        spec.decoder.projection.bias = generator.normal(size=len(sides[1])).astype("f4")
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = scale
    spec.decoder.start_from_zero_embedding = from_zero
    if outputs_scale is not None:
        spec.decoder.scale_outputs = np.array(outputs_scale, "f4")
    visit_spec(spec, lambda *leaf: _fill(*leaf, generator=generator, table=table))
    spec.register_source_vocabulary(sides[0])
    spec.register_target_vocabulary(sides[1])
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization=quantization)
    directory.mkdir()
    spec.save(str(directory))
    return directory


def _fill(
    spec: Any, name: str, value: object, *, generator: np.random.Generator, table: bool
) -> None:
    """Give a weight that has no value yet a random one; biases follow the weights before them."""
    leaf = name.rpartition("/")[2]
    if leaf == "encodings" and not table:
        return
    for pattern, shape in SHAPES.items():
        if re.search(f"({pattern})$", name):
            values = generator.normal(size=shape) / shape[-1] ** 0.5
            setattr(spec, leaf, (values + (leaf == "gamma")).astype("f4"))
            return
    if leaf == "bias" and value is None and "projection" not in name:
        spec.bias = generator.normal(size=len(spec.weight)).astype("f4") / 5
