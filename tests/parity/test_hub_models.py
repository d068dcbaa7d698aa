"""Models by name, from the first word typed to the last one written, as transformers writes it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentencepiece import SentencePieceProcessor

from mlx_transformer import hub, load
from mlx_transformer.__main__ import main
from mlx_transformer.convert.conversion import convert
from mlx_transformer.decoding.options import model_options
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


def tatoeba(folder: Path) -> Any:
    """Into several languages, and published as half-precision pickles."""
    model = published.sentencepiece("unigram", bos_id=-1)
    pieces = SentencePieceProcessor(model_proto=model)
    words = ["</s>", "<unk>", ">>hrv<<", ">>srp_Cyrl<<", ">>slv<<"]
    words += [pieces.id_to_piece(i) for i in range(3, pieces.vocab_size())] + ["<pad>"]
    for name in ("source.spm", "target.spm"):
        published.write(folder / name, model)
    published.write(folder / "vocab.json", {word: i for i, word in enumerate(words)})
    published.settings(folder, "MarianTokenizer", source_lang="en", target_lang="zls")
    last = len(words) - 1
    config = transformers.MarianConfig(
        vocab_size=len(words), pad_token_id=last, eos_token_id=0, decoder_start_token_id=last,
        scale_embedding=True, max_position_embeddings=64, **TINY
    )  # fmt: skip
    made = transformers.MarianMTModel(config)
    made.generation_config.bad_words_ids = [[last]]
    return made.half()


def t5(folder: Path) -> Any:
    published.t5(folder)
    (folder / "tokenizer_config.json").unlink()
    prefix = {"prefix": "translate English to German: "}
    config = transformers.T5Config(
        vocab_size=1_024, decoder_start_token_id=0, **T5,
        task_specific_params={"translation_en_to_de": prefix},
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def byt5(folder: Path) -> Any:
    published.byt5(folder)
    config = transformers.T5Config(vocab_size=384, decoder_start_token_id=0, **T5)
    return transformers.T5ForConditionalGeneration(config)


def pegasus(folder: Path) -> Any:
    published.pegasus(folder)
    config = transformers.PegasusConfig(vocab_size=1_010, max_position_embeddings=256, **TINY)
    return transformers.PegasusForConditionalGeneration(config)


def bart(folder: Path) -> Any:
    published.bart(folder)
    config = transformers.BartConfig(vocab_size=900, max_position_embeddings=1_024, **TINY)
    return transformers.BartForConditionalGeneration(config)


@dataclass(frozen=True)
class Kind:
    """A repository, what is typed to use it, and what transformers wants to be told instead."""

    make: Callable[[Path], Any]
    flags: list[str] = field(default_factory=list)
    languages: dict[str, str] = field(default_factory=dict)
    first: str | None = None  # the word that every translation is to begin with
    prefix: str = ""
    whole: bool = False  # reads a text of several sentences at once
    pickled: bool = False


KINDS = {
    "nllb": Kind(
        nllb, ["--from", "German", "--to", "fra_Latn"], {"src_lang": "deu_Latn"}, "fra_Latn"
    ),
    "m2m100": Kind(
        m2m100, ["--from", "de_DE", "--to", "French"], {"src_lang": "de"}, "__fr__", pickled=True
    ),
    "mbart50": Kind(mbart50, ["--from", "deu", "--to", "fr"], {"src_lang": "de_DE"}, "fr_XX"),
    "madlad": Kind(madlad, ["--to", "fr"], prefix="<2fr> "),
    "tatoeba": Kind(tatoeba, ["--to", "Slovene"], prefix=">>slv<< ", pickled=True),
    "t5 told to translate": Kind(t5, ["--to", "de"], prefix="translate English to German: "),
    "t5": Kind(t5, whole=True, pickled=True),
    "byt5": Kind(byt5, whole=True),
    "pegasus": Kind(pegasus, whole=True),
    "bart": Kind(bart, whole=True),
}
SEARCH = {"max_length": 24, "num_beams": 3}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_name_translates_as_transformers_does(kind, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "published"
    folder.mkdir()
    torch.manual_seed(1)
    model = kind.make(folder).eval()
    model.save_pretrained(folder)
    if kind.whole:  # as files of old are: the settings lie in config.json
        (folder / "generation_config.json").unlink()
        add_to(folder / "config.json", SEARCH)
    else:
        add_to(folder / "generation_config.json", SEARCH)
    if kind.pickled:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    texts = [f"{a}. {b}" for a, b in pairwise(lines()[:21])] if kind.whole else lines()[:20]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models["org/tiny"] = folder
        flags = [*kind.flags, "--input", str(tmp_path / "in.txt")]
        assert main(["translate", "--model", "org/tiny", *flags]) == 0
    written = capsys.readouterr().out.removesuffix("\n").split("\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **kind.languages)
    wanted: dict[str, Any] = {**SEARCH}
    if kind.first is not None:
        wanted["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(kind.first)
    expected = []
    for text in texts:
        ids = tokenizer(kind.prefix + text, return_tensors="pt")
        found = model.float().generate(**ids, **wanted)
        text = tokenizer.decode(found[0], skip_special_tokens=True)
        expected.append(text.replace("\n", " ").replace("\r", " "))
    assert [line.strip() for line in written] == [line.strip() for line in expected]
    assert len({*expected}) > 5, "a model that always writes the same shows nothing"


def add_to(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_a_text_may_name_its_language_itself(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "published"
    folder.mkdir()
    torch.manual_seed(1)
    tatoeba(folder).save_pretrained(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = ["translate", "--model", str(folder), "--max-tokens", "9"]
    assert main([*model, "--to", "Serbian", "Dobar dan."]) == 0
    told = capsys.readouterr().out
    assert main([*model, ">>srp_Cyrl<< Dobar dan."]) == 0
    assert capsys.readouterr().out == told
    assert main([*model, "Dobar dan."]) == 2
    assert "name the target language" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_beams", 0), ("num_beams", "two"), ("length_penalty", -1.0), ("max_length", 10**9),
     ("bad_words_ids", [5]), ("bad_words_ids", [[10**8]]), ("forced_bos_token_id", 10**8),
     ("early_stopping", "maybe"), ("no_repeat_ngram_size", -3)],
)  # fmt: skip
def test_settings_that_nobody_could_search_with_are_left_out(name, value, tmp_path, monkeypatch):
    folder = tmp_path / "published"
    folder.mkdir()
    torch.manual_seed(1)
    t5(folder).save_pretrained(folder)
    add_to(folder / "generation_config.json", {name: value})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match=f"the model wants {name} .* does without"):
        translator = load(folder)
    assert translator.translate(lines()[0], max_tokens=5).text


def test_the_start_is_the_one_that_generate_begins_with(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    t5(folder).save_pretrained(folder)
    add_to(folder / "generation_config.json", {"decoder_start_token_id": 7})
    assert convert(folder, tmp_path / "out").config.start_id == 7


def test_an_end_of_sentence_may_be_listed(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    t5(folder).save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        add_to(folder / name, {"eos_token_id": [1], "forced_eos_token_id": [1]})
    assert convert(folder, tmp_path / "out").config.eos_id == 1
    assert model_options(tmp_path / "out").end_at_limit


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
