"""Ways to run the model that a checkpoint was saved from, for `Family.original`.

PyTorch and transformers are imported where they are used: only a verification needs them.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.family import Logits, Original, Source
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.convert.tensors import cast
from mlx_transformer.errors import RunError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

OpenOriginal = Callable[[Source, ModelConfig], Original]
PACKAGES = {"torch": "torch==2.13.*", "transformers": "transformers>=5,<6"}


def transformers_model(source: Source, config: ModelConfig) -> Original:
    """The real thing, loaded by transformers itself, which asks the files alone what they are."""
    model = loaded_by_transformers("AutoModelForSeq2SeqLM", source)
    import torch

    def run(source_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        # Without the cache: with it, FSMT drops the causal mask on several words at once.
        return model(
            input_ids=source_ids,
            attention_mask=(source_ids != config.pad_id).long(),
            decoder_input_ids=target_ids,
            use_cache=False,
        ).logits

    description = f"`{type(model).__name__}` of transformers, loaded by it from the same files"
    return Original(description, on_numpy(run), independent=True)


def transformers_text_model(auto_class: str) -> OpenOriginal:
    """As `transformers_model`, for models that read one text: logits, or vectors without a head."""

    def open_original(source: Source, config: ModelConfig) -> Original:
        name = "AutoModel" if config.word_head == "none" else auto_class
        model = loaded_by_transformers(name, source)
        import torch

        def run(ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            found = model(input_ids=ids, attention_mask=(ids != config.pad_id).long())
            return found[0]

        description = f"`{type(model).__name__}` of transformers, loaded by it from the same files"
        return Original(description, on_numpy(run), independent=True)

    return open_original


def loaded_by_transformers(auto_class: str, source: Source) -> "PreTrainedModel":
    need_package("torch")
    need_package("transformers")
    import torch
    import transformers

    if not source.checkpoint.fields("config.json"):
        raise _not_verified("transformers needs the config.json of the model beside its weights")
    if source.options.renames:
        raise _not_verified("transformers loads the file itself, and does not know the new names")
    transformers.utils.logging.disable_progress_bar()
    try:
        model = getattr(transformers, auto_class).from_pretrained(
            source.checkpoint.directory, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise _not_verified(f"transformers cannot load the files: {reason}") from error
    return model.eval()


def _not_verified(reason: str) -> RunError:
    return RunError(f"converted, but not verified: {reason}")


def plain_pass(framework: str, names: TensorNames) -> OpenOriginal:
    """The paper's formulas on the checkpoint's own tensors, where the framework cannot be run."""

    def open_original(source: Source, config: ModelConfig) -> Original:
        need_package("torch")
        _check_is_plain(framework, config)
        from mlx_transformer.convert.reference import Reference

        model = Reference(names, as_torch(names.tidy(float_tensors(source))), config)
        return Original(
            f"a plain forward pass in PyTorch from the checkpoint's tensors under {framework}'s "
            f"names, written for this purpose because {framework} itself cannot be run here: it "
            "shows that no weight was lost, mixed up or rounded",
            on_numpy(model),
        )

    return open_original


def _check_is_plain(framework: str, config: ModelConfig) -> None:
    """The plain pass is the paper's: of later inventions it has what these frameworks often use."""
    later = {
        "RMS norms": config.norm_kind == "rms",
        "gates": config.gated_feed_forward,
        "relative positions": config.positions == "relative",
    }
    if lacking := [part for part, used in later.items() if used]:
        listed = " and no ".join(lacking)
        raise _not_verified(f"the pass that stands in for {framework} has no {listed}")


def need_package(package: str) -> None:
    if find_spec(package) is None:
        raise _not_verified(f'{package} is not installed: pip install "{PACKAGES[package]}"')


def float_tensors(source: Source) -> dict[str, np.ndarray]:
    """All floating-point tensors in float32, by the names that the family has for them."""
    return {
        key: cast(tensor.numpy(), tensor.dtype, "float32").astype("f4")
        for key, tensor in source.tensors.items()
        if "float" in tensor.dtype
    }


def as_torch(tensors: Mapping[str, np.ndarray]) -> "dict[str, torch.Tensor]":
    import torch

    return {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in tensors.items()}


def on_numpy(model: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]") -> Logits:
    """A PyTorch model as a function of NumPy arrays."""
    import torch

    @torch.no_grad()
    def logits(source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        return model(torch.from_numpy(source_ids), torch.from_numpy(target_ids)).numpy()

    return logits
