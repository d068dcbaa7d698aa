"""The mean of whole models: the ends of runs that went on from each other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.storage import named_parameters
from mlx_transformer.tokenizer import Tokenizer, load_tokenizer
from mlx_transformer.tokenizer.transformers_files import SETTINGS
from mlx_transformer.training.run import load_unquantized, write_model


def average_models(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of models of one kind with one vocabulary."""
    models = [load_unquantized(path) for path in paths]
    config = models[0].config
    tokenizer = load_tokenizer(paths[0], config)
    for path, model in zip(paths[1:], models[1:], strict=True):
        if replace(model.config, dropout=config.dropout) != config:
            raise InputError(f"{path} is not of the same kind as {paths[0]}: compare their info")
        if _pieces(load_tokenizer(path, config)) != _pieces(tokenizer):
            raise InputError(f"{path} has another vocabulary than {paths[0]}")
    mean = Transformer(config)
    weights = [named_parameters(model) for model in models]
    mean.load_weights(
        [(name, mx.mean(mx.stack([w[name] for w in weights]), axis=0)) for name in weights[0]]
    )
    write_model(mean, tokenizer, out, f"The mean of {', '.join(map(str, paths))}.\n")


def _pieces(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files that number pieces; what says the languages may be missing beside them."""
    return {name: content for name, content in tokenizer.files.items() if name != SETTINGS}
