"""Make a model's encoder deeper without unlearning: between any two layers comes a neutral one.

    python tools/deepen.py weights/en-de --out runs/deeper
    mlx-transformer train my-recipe.toml --start runs/deeper --out runs/tuned

The new layers add nothing yet and leave almost unchanged what passes through them, so the deeper
model translates nearly as before and training goes on from there. For post-norm encoders with layer
norms, as in the paper.
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
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the deeper model")
    args = parser.parse_args()
    try:
        model = load_unquantized(args.model)
        deeper = deepened(model)
        card = (
            f"{args.model} with {deeper.config.encoder_layers} encoder layers, to be trained on.\n"
        )
        write_model(deeper, load_tokenizer(args.model, model.config), args.out, card)
    except InputError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
