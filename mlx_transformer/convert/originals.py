"""The originals of converted models, as far as they can be run: real ones, or rebuilt in PyTorch.

Only `--verify` comes here. PyTorch and transformers are imported where they are used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert import torch_nn
from mlx_transformer.convert.family import Source
from mlx_transformer.convert.tensors import cast
from mlx_transformer.errors import RunError
from mlx_transformer.model import sinusoids
from mlx_transformer.storage import load_model

if TYPE_CHECKING:
    import torch

Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids (B,S), (B,T) -> (B,T,V)
PACKAGES = {"torch": "torch==2.13.*", "transformers": "transformers>=5,<6"}


@dataclass(frozen=True)
class Original:
    description: str
    logits: Logits


def open_original(family: str, source: Source, config: ModelConfig) -> Original:
    """What a checkpoint of that family is compared with; `config` is the converted model's."""
    if family == "mlx":
        return _mlx(source)
    _need("torch")
    if family in TRANSFORMERS_CLASSES:
        return _transformers(TRANSFORMERS_CLASSES[family], source, config)
    if family == "torch":
        return _torch(source, config)
    return _plain(family, source, config)


def _need(package: str) -> None:
    if find_spec(package) is None:
        raise RunError(
            f'converted, but not verified, for want of {package}: pip install "{PACKAGES[package]}"'
        )


def _mlx(source: Source) -> Original:
    model = load_model(source.checkpoint.directory, mx.float32)

    def logits(source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        return np.array(model(mx.array(source_ids), mx.array(target_ids)))

    return Original("the model that it was made from, in MLX", logits)


TRANSFORMERS_CLASSES = {"marian": "MarianMTModel", "fsmt": "FSMTForConditionalGeneration"}


def _transformers(name: str, source: Source, config: ModelConfig) -> Original:
    """The real thing, loaded by transformers itself."""
    _need("transformers")
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = getattr(transformers, name).from_pretrained(
        source.checkpoint.directory, dtype=torch.float32, local_files_only=True
    )
    model.eval()

    def run(source_ids: "torch.Tensor", target_ids: "torch.Tensor") -> "torch.Tensor":
        # Without the cache: with it, FSMT drops the causal mask on several words at once.
        return model(
            input_ids=source_ids,
            attention_mask=(source_ids != config.pad_id).long(),
            decoder_input_ids=target_ids,
            use_cache=False,
        ).logits

    return Original(f"`{name}` of transformers, loaded by it from the same files", _numpy(run))


# The user's own modules around torch.nn.Transformer: our names, and those of `torch_example`.
OWN_MODULES = {
    "source_words.weight": "source_embedding.weight",
    "target_words.weight": "target_embedding.weight",
    "output.weight": "output.weight",
    "output_bias": "output.bias",
    "source_embedding.positions": "source_positions",
    "target_embedding.positions": "target_positions",
}


def _torch(source: Source, config: ModelConfig) -> Original:
    """torch.nn.Transformer itself, between the checkpoint's own embeddings and head."""
    import torch

    from mlx_transformer.convert.torch_example import Translator

    model = Translator(SimpleNamespace(**config.to_dict())).eval()
    state = {name: torch.zeros_like(values) for name, values in model.state_dict().items()}
    needed = {name for name in state if not name.endswith("bias")}  # built with bias=False
    tensors = _tensors(source)
    given = {f"transformer.{k}": v for k, v in tensors.items() if k.startswith(("enc", "dec"))}
    keys = torch_nn.found(source).items()
    own = {ours: tensors[str(key)] for ours, key in keys if key in tensors}
    own.setdefault("target_words.weight", own["source_words.weight"])
    own.setdefault("output.weight", own["target_words.weight"])
    if "source_embedding.positions" not in own:
        table = torch.from_numpy(sinusoids(config))
        own |= {f"{side}_embedding.positions": table for side in ("source", "target")}
    for ours, theirs in OWN_MODULES.items():
        if ours in own:
            given[theirs] = own[ours].reshape(state[theirs].shape)
    assert needed <= given.keys() <= state.keys()
    model.load_state_dict(state | given)
    return Original(
        "`torch.nn.Transformer`, between the checkpoint's embeddings and head, with its tensors "
        "under their own names",
        _numpy(model),
    )


def _plain(family: str, source: Source, config: ModelConfig) -> Original:
    from mlx_transformer.convert.reference import LAYOUTS, Reference

    model = Reference(LAYOUTS[family], _tensors(source), config)
    return Original(
        f"a plain forward pass in PyTorch from the checkpoint's tensors under {family}'s names, "
        f"written for this purpose because {family} itself cannot be run here: it shows that no "
        "weight was lost, mixed up or rounded",
        _numpy(model),
    )


def _tensors(source: Source) -> "dict[str, torch.Tensor]":
    """All floating-point tensors in float32, by the names that the family has for them."""
    import torch

    return {
        key: torch.from_numpy(cast(tensor.numpy(), tensor.dtype, "float32").astype("f4"))
        for key, tensor in source.tensors.items()
        if "float" in tensor.dtype
    }


def _numpy(model: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]") -> Logits:
    import torch

    @torch.no_grad()
    def logits(source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(source_ids), torch.from_numpy(target_ids)).numpy()

    return logits
