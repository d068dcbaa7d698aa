"""MarianMT and FSMT as written by transformers itself."""

import json
from pathlib import Path

import pytest
import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration, MarianConfig, MarianMTModel

from mlx_transformer.convert.conversion import convert
from mlx_transformer.errors import InputError
from tests.parity.conversion_checks import assert_equal_models

SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}


def marian(**changes) -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        **SIZES, vocab_size=58, activation_function="swish", scale_embedding=True, init_std=0.2,
        pad_token_id=57, eos_token_id=0, decoder_start_token_id=57, forced_eos_token_id=0,
        **changes,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    model.final_logits_bias = torch.randn_like(model.final_logits_bias)
    return shaken(model)


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """Biases and norms as training leaves them, not zeros and ones."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def logits(model: torch.nn.Module):
    def run(source, target):
        mask = (source != model.config.pad_token_id).long()
        return model(
            input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False
        ).logits

    return run


@pytest.mark.parametrize("file", ["safetensors", "bin"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "decoder_vocab_size": 58,
        },
    ],
    ids=["shared", "separate"],
)
def test_marian(tmp_path: Path, changes: dict, file: str) -> None:
    original, folder = marian(**changes), tmp_path / "original"
    original.save_pretrained(folder)
    if file == "bin":  # all aliases of the shared matrix are in such a file
        (folder / "model.safetensors").unlink()
        torch.save(original.state_dict(), folder / "pytorch_model.bin")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (folder / name).write_text(name)
    report = convert(folder, tmp_path / "out")
    assert report.family == "marian"
    config = assert_equal_models(tmp_path / "out", logits(original)).config
    assert (config.pad_id, config.start_id, config.eos_id) == (57, 57, 0)
    assert config.shared_embeddings == (not changes)
    assert (tmp_path / "out" / "source.spm").read_text() == "source.spm"


def test_marian_in_float16_stays_float16(tmp_path: Path) -> None:
    marian().half().save_pretrained(tmp_path / "original")
    report = convert(tmp_path / "original", tmp_path / "out")
    assert report.dtypes == ("float16",)
    original = MarianMTModel.from_pretrained(tmp_path / "original", dtype=torch.float32).eval()
    assert_equal_models(tmp_path / "out", logits(original))


def test_marian_in_shards(tmp_path: Path) -> None:
    original = marian()
    original.save_pretrained(tmp_path / "original", max_shard_size="20KB")
    assert (tmp_path / "original" / "model.safetensors.index.json").is_file()
    convert(tmp_path / "original", tmp_path / "out")
    assert_equal_models(tmp_path / "out", logits(original))


def test_marian_needs_its_config(tmp_path: Path) -> None:
    torch.save(marian().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"config\.json must lie beside"):
        convert(tmp_path, tmp_path / "out")


def test_fsmt(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = FSMTConfig(
        **SIZES, langs=["en", "de"], src_vocab_size=40, tgt_vocab_size=48, init_std=0.2,
        activation_function="relu", tie_word_embeddings=False,
    )  # fmt: skip
    original = shaken(FSMTForConditionalGeneration(config).eval())
    original.save_pretrained(tmp_path / "original")
    assert json.loads((tmp_path / "original" / "config.json").read_text())["model_type"] == "fsmt"
    report = convert(tmp_path / "original", tmp_path / "out")
    assert report.family == "fsmt"
    config = assert_equal_models(tmp_path / "out", logits(original)).config
    assert (config.start_id, config.pad_id, config.position_offset) == (2, 1, 2)
    assert config.max_length == 64
