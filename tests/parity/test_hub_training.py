"""Fine-tuning a model of several languages: batches are what transformers' tokenizer makes."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from mlx_transformer import hub
from mlx_transformer.config import ModelConfig
from mlx_transformer.data.batches import Batches
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.recipes import load_recipe
from mlx_transformer.training.run import Run
from tests.parity import test_hub_models as models
from tests.parity import test_tokenizers as published
from tests.tokenizer.ten_scripts import lines

pytestmark = pytest.mark.slow


def mbart(folder: Path):
    published.mbart(folder)
    config = transformers.MBartConfig(
        vocab_size=927, max_position_embeddings=128, decoder_start_token_id=920, **models.TINY
    )
    return transformers.MBartForConditionalGeneration(config)


KINDS = {
    "nllb": (models.nllb, "deu_Latn", "ron_Latn"),
    "m2m100": (models.m2m100, "de", "ro"),
    "mbart": (mbart, "de_DE", "ro_RO"),
}


def unpadded(row: np.ndarray, pad_id: int) -> tuple[int, ...]:
    return tuple(np.trim_zeros(row - pad_id, "b") + pad_id)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_transformers(kind, tmp_path, monkeypatch):
    make, source, target = KINDS[kind]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start, text = tmp_path / "start", tmp_path / "text"
    start.mkdir()
    text.mkdir()
    make(start).save_pretrained(start)
    short = [line for line in lines() if len(line) < 20][:40]
    for name in ("train.de", "train.ro", "dev.de", "dev.ro"):
        (text / name).write_text("\n".join(short) + "\n", encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(
        f'[data]\ndir = "{text}"\nsource_language = "de"\ntarget_language = "ro"\n'
        'train = "train"\nvalid = "dev"\nmax_length = 60\n[training]\nmax_steps = 1\n'
    )
    recipe = load_recipe(str(tmp_path / "recipe.toml")).tuning(hub.resolve(start))
    run = Run.create(tmp_path / "run", recipe)
    run.prepare(lambda *_: None)
    corpus = ParallelCorpus.open(run.files.data, "train")
    config = ModelConfig.load(run.files.start / "config.json")
    theirs = transformers.AutoTokenizer.from_pretrained(start, src_lang=source, tgt_lang=target)
    expected = set()
    for line in short:
        pair = theirs(line, text_target=line)
        labels = pair["labels"]
        if kind == "mbart":  # behind the end stands the language, which the decoder starts from
            assert labels.pop() == config.start_id
        expected.add((tuple(pair["input_ids"]), tuple(labels)))
    batches = Batches(corpus, config, 500)
    found = set()
    for plan in batches.epoch(0):
        batch = batches.read(plan)
        for source_row, target_row in zip(batch.source, batch.target_out, strict=True):
            found.add((unpadded(source_row, config.pad_id), unpadded(target_row, config.pad_id)))
    assert found - {((), ())} == expected
