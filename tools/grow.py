"""Make a model larger without unlearning: deeper encoders, wider feed-forward layers.

    python tools/grow.py weights/en-de --deeper --out runs/deeper
    python tools/grow.py weights/en-de --d-ff 1792 --out runs/wider
    mlx-transformer train my-recipe.toml --start runs/wider --out runs/tuned

What is new adds nothing yet, so the larger model translates as before and training goes on from
there. Deeper: between any two encoder layers comes a neutral one, which changes a little; for
post-norm encoders with layer norms, as in the paper. Wider: new units are drawn as in a new model,
and nothing that the model computes changes until their outputs are trained.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

# ruff: noqa: I001 - before mlx: on Linux this package brings the fast BLAS
from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters
from mlx_transformer.tokenizer import load_tokenizer
from mlx_transformer.training.run import load_unquantized, write_model

import mlx.core as mx

Layer = dict[str, mx.array]  # the parameters of one encoder layer, by their names in it

STACK = "encoder.layers."
ADDED_TO_THE_RESIDUAL = ("self_attention.out", "feed_forward.w_2")
NORMS = ("self_attention_norm", "feed_forward_norm")


def widened(model: Transformer, d_ff: int) -> Transformer:
    """The same model with `d_ff` units in each feed-forward layer."""
    config = model.config
    if config.gated_feed_forward:
        raise InputError("feed-forward layers with gates cannot be widened")
    if d_ff <= config.d_ff:
        raise InputError(f"a wider model has more than {config.d_ff} units: say a larger --d-ff")
    wider = Transformer(replace(config, d_ff=d_ff))
    fresh = named_parameters(wider)
    placed = {name: extended(name, a, fresh[name]) for name, a in named_parameters(model).items()}
    wider.load_weights(list(placed.items()), strict=True)
    return wider


def extended(name: str, old: mx.array, fresh: mx.array) -> mx.array:
    """The old numbers where they were; beside them new units, which add nothing to the sum."""
    if old.shape == fresh.shape:
        return old
    if name.endswith("w_2.weight"):  # (d_model, d_ff): a column for each unit
        return mx.pad(old, [(0, 0), (0, fresh.shape[1] - old.shape[1])])
    return mx.concatenate([old, fresh[len(old) :].astype(old.dtype)])  # a row for each unit


def deepened(model: Transformer) -> Transformer:
    """The same model with 2N - 1 encoder layers instead of N."""
    check_can_deepen(model.config)
    parameters = named_parameters(model)
    layers: list[Layer] = []
    for number in range(model.config.encoder_layers):
        if layers:
            layers.append(neutral(layers[-1]))
        layers.append(inside(parameters, f"{STACK}{number}."))
    others = {name: array for name, array in parameters.items() if not name.startswith(STACK)}
    placed = {f"{STACK}{i}.{n}": a for i, layer in enumerate(layers) for n, a in layer.items()}
    deeper = Transformer(replace(model.config, encoder_layers=len(layers)))
    deeper.load_weights(list((others | placed).items()), strict=True)
    return deeper


def inside(parameters: Mapping[str, mx.array], prefix: str) -> Layer:
    return {n.removeprefix(prefix): a for n, a in parameters.items() if n.startswith(prefix)}


def check_can_deepen(config: ModelConfig) -> None:
    if config.norm != "post" or config.norm_kind != "layer":
        raise InputError("only post-norm models with layer norms can be deepened")


def neutral(layer: Layer) -> Layer:
    """A layer to put behind `layer`: it attends alike, adds nothing, and normalises to the same.

    What leaves a layer norm with gain g and bias b has about the mean of b, and the variance
    mean(g^2) + var(b). A norm with these as its bias and its gain changes such a vector little.
    """
    made = dict(layer)
    for name in ADDED_TO_THE_RESIDUAL:
        made |= {n: mx.zeros_like(a) for n, a in layer.items() if n.startswith(f"{name}.")}
    gain, bias = layer["feed_forward_norm.weight"], layer["feed_forward_norm.bias"]
    spread = mx.sqrt(mx.mean(gain * gain) + mx.var(bias))
    for name in NORMS:
        made[f"{name}.weight"] = mx.broadcast_to(spread, gain.shape)
        made[f"{name}.bias"] = mx.broadcast_to(mx.mean(bias), bias.shape)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a model directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the larger model")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--deeper", action="store_true", help="2N - 1 encoder layers instead of N")
    how.add_argument("--d-ff", type=int, metavar="N", help="N units in each feed-forward layer")
    args = parser.parse_args()
    try:
        model = load_unquantized(args.model)
        larger = deepened(model) if args.deeper else widened(model, args.d_ff)
        size = f"{larger.config.encoder_layers} encoder layers and d_ff {larger.config.d_ff}"
        card = f"{args.model} with {size}, to be trained on.\n"
        write_model(larger, load_tokenizer(args.model, model.config), args.out, card)
    except InputError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
