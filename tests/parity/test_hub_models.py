"""Models by name, from the first word typed to the last one written, as transformers writes it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mlx_transformer import hub
from mlx_transformer.__main__ import main
from tests.hub_server import HubServer
from tests.parity import test_tokenizers as published
from tests.test_hub import use_hub
from tests.tokenizer.ten_scripts import lines

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_std": 0.5,
}
T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "tie_word_embeddings": False,
    "feed_forward_proj": "gated-gelu",
    "initializer_factor": 2.0,
}


def nllb(folder: Path) -> Any:
    published.nllb(folder)
    config = transformers.M2M100Config(vocab_size=1_110, max_position_embeddings=64, **TINY)
    return transformers.M2M100ForConditionalGeneration(config)


def m2m100(folder: Path) -> Any:
    published.m2m100(folder)
    config = transformers.M2M100Config(vocab_size=1_001, max_position_embeddings=64, **TINY)
    return transformers.M2M100ForConditionalGeneration(config)


def mbart50(folder: Path) -> Any:
    published.mbart50(folder)
    config = transformers.MBartConfig(
        vocab_size=960, max_position_embeddings=64, decoder_start_token_id=2, **TINY
    )
    return transformers.MBartForConditionalGeneration(config)


def madlad(folder: Path) -> Any:
    published.madlad(folder)
    config = transformers.T5Config(
        vocab_size=900, pad_token_id=1, eos_token_id=2, decoder_start_token_id=0, **T5
    )
    return transformers.T5ForConditionalGeneration(config)


KINDS = {
    "nllb": (nllb, ["--from", "German", "--to", "fra_Latn"], "deu_Latn", "fra_Latn"),
    "m2m100": (m2m100, ["--from", "de_DE", "--to", "French"], "de", "fr"),
    "mbart50": (mbart50, ["--from", "deu", "--to", "fr"], "de_DE", "fr_XX"),
    "madlad": (madlad, ["--to", "fr"], None, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_translates_as_transformers_does(kind, tmp_path, monkeypatch, capsys):
    make, flags, source, target = KINDS[kind]
    folder = tmp_path / "published"
    folder.mkdir()
    torch.manual_seed(1)
    model = make(folder).eval()
    model.generation_config.max_length = 24
    model.generation_config.num_beams = 3
    model.save_pretrained(folder)
    (tmp_path / "in.txt").write_text("\n".join(lines()[:30]) + "\n", encoding="utf-8")
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models["org/tiny"] = folder
        assert (
            main(["translate", "--model", "org/tiny", *flags, "--input", str(tmp_path / "in.txt")])
            == 0
        )
    written = capsys.readouterr().out.splitlines()
    languages = {} if source is None else {"src_lang": source, "tgt_lang": target}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **languages)
    forced = {}
    if target is not None:
        token = f"__{target}__" if kind == "m2m100" else target
        forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}
    expected = []
    for line in lines()[:30]:
        ids = tokenizer("<2fr> " + line if kind == "madlad" else line, return_tensors="pt")
        found = model.generate(**ids, **forced)
        expected.append(tokenizer.decode(found[0], skip_special_tokens=True))
    assert written == expected
    assert len({*expected}) > 5, "a model that always writes the same shows nothing"


def test_a_model_that_needs_a_language_says_so(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "published"
    folder.mkdir()
    nllb(folder).save_pretrained(folder)
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models["org/tiny"] = folder
        assert main(["translate", "--model", "org/tiny", "Guten Tag"]) == 2
        assert "the model knows 202 languages: name the target language" in capsys.readouterr().err
        assert main(["translate", "--model", "org/tiny", "--to", "Frensh", "Guten Tag"]) == 2
        assert "did you mean fra_Latn (French)" in capsys.readouterr().err
        assert main(["info", "org/tiny", "--languages", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["targets"]) == 202
        assert hub.cached()[0].family
