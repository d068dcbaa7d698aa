"""BART, mBART, M2M100, Pegasus and T5 with its kin, as written by transformers itself."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from mlx_transformer.convert.conversion import convert
from mlx_transformer.errors import InputError
from tests.parity.conversion_checks import assert_equal_models
from tests.parity.hub_models import FAMILY_OF, MODELS, halved, untied
from tests.parity.test_convert_transformers import logits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MODELS)
def test_every_family(name: str, tmp_path: Path) -> None:
    original = halved(MODELS[name]())
    original.save_pretrained(tmp_path / "original")
    report = convert(tmp_path / "original", tmp_path / "out")
    assert report.family == FAMILY_OF.get(name, name)
    assert_equal_models(tmp_path / "out", logits(original))


def test_separate_embeddings_and_head(tmp_path: Path) -> None:
    original = untied(halved(MODELS["mt5"]()))
    original.save_pretrained(tmp_path / "original")
    report = convert(tmp_path / "original", tmp_path / "out")
    assert not report.config.shared_embeddings and not report.config.tied_output
    assert_equal_models(tmp_path / "out", logits(original))


@pytest.mark.parametrize("name", ["m2m100", "umt5"])
def test_a_pickle_with_every_alias_of_the_shared_words(name: str, tmp_path: Path) -> None:
    original = halved(MODELS[name]())
    original.save_pretrained(tmp_path / "original")
    (tmp_path / "original" / "model.safetensors").unlink()
    torch.save(original.state_dict(), tmp_path / "original" / "pytorch_model.bin")
    report = convert(tmp_path / "original", tmp_path / "out")
    assert report.config.shared_embeddings and report.config.tied_output
    assert_equal_models(tmp_path / "out", logits(original))


@pytest.mark.parametrize("name", ["bart", "t5-1.1"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_in_shards(name: str, dtype: str, tmp_path: Path) -> None:
    folder = tmp_path / "original"
    halved(MODELS[name]()).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    report = convert(folder, tmp_path / "out")
    assert report.dtypes == (dtype,)
    assert_equal_models(tmp_path / "out", logits(reloaded(folder)))


def reloaded(folder: Path) -> PreTrainedModel:
    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("longt5", "LongT5"), ("nllb-moe", "mixture of experts"), ("led", "LED")],
)
def test_what_is_not_read_is_named(model_type: str, reason: str, tmp_path: Path) -> None:
    halved(MODELS["t5"]()).save_pretrained(tmp_path / "original")
    config = tmp_path / "original" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": model_type}))
    with pytest.raises(InputError, match=reason):
        convert(tmp_path / "original", tmp_path / "out")
