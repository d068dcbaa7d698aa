"""Models of transformers in CTranslate2: as its own converter makes them and people publish them,
`model.bin` beside the files of the tokenizer, which alone know languages and the end of a sentence;
and as we export them."""

import json
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import transformers

from mlx_transformer.__main__ import main
from tests.hub_server import HubServer
from tests.parity.test_published_layouts import LAYOUTS, OTHERS, Layout, publish
from tests.test_hub import use_hub

pytestmark = pytest.mark.slow

TEXTS, LENGTH = 6, 16
NAMES = (
    "Helsinki-NLP/opus-mt-en-de",
    "facebook/nllb-200-distilled-600M",
    "facebook/m2m100_418M",
    "google/madlad400-3b-mt",
    "google-t5/t5-small",
)


def converted(layout: Layout, folder: Path, out: Path) -> Path:
    """By CTranslate2's own converter, with all small files beside, as its guide says."""
    folder.mkdir()
    publish(layout, folder)
    for name in OTHERS:
        (folder / name).unlink()
    left = {"config.json", "model.safetensors.index.json"}  # there CTranslate2 writes its own
    kept = [p.name for p in folder.iterdir() if p.suffix in (".json", ".spm", ".model")]
    converter = ctranslate2.converters.TransformersConverter(
        str(folder), copy_files=[name for name in kept if name not in left]
    )
    return Path(converter.convert(str(out)))


def written_by_ctranslate2(layout: Layout, folder: Path, model: Path, prefix: str) -> list[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **layout.languages)
    engine = ctranslate2.Translator(str(model), compute_type="float32")
    ends = json.loads((model / "config.json").read_text())["add_source_eos"]
    first: dict[str, Any] = {"target_prefix": [[layout.first]]} if layout.first else {}
    found = []
    for text in layout.texts[:TEXTS]:
        ids = tokenizer.encode(prefix + text)
        tokens = tokenizer.convert_ids_to_tokens(ids[:-1] if ends else ids)
        result = engine.translate_batch([tokens], beam_size=1, max_decoding_length=LENGTH, **first)
        words = [word for word in result[0].hypotheses[0] if word != layout.first]
        ids = tokenizer.convert_tokens_to_ids(words)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        found.append(" ".join(text.splitlines()).strip())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_text_in_text_out_by_name(name, tmp_path, monkeypatch, capsys):
    layout = LAYOUTS[name]
    model = converted(layout, tmp_path / "transformers", tmp_path / "ctranslate2")
    # What T5 is asked for stood in the config.json of transformers: people type it.
    asked = layout.prefix if "t5" in name else ""
    flags = [] if asked else layout.flags
    lines = [asked + text for text in layout.texts[:TEXTS]]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models["org/ct2"] = model
        said = ["--model", "org/ct2", "--beam", "1", "--max-tokens", str(LENGTH), *flags]
        assert main(["translate", *said, "--input", str(tmp_path / "in.txt")]) == 0
        written = [line.strip() for line in capsys.readouterr().out.splitlines()]
    theirs = written_by_ctranslate2(layout, tmp_path / "transformers", model, layout.prefix)
    assert written == theirs
    assert len({*written}) > 2, "a model that always writes the same shows nothing"


@pytest.mark.parametrize("name", NAMES)
def test_exported_it_writes_the_same(name, tmp_path, monkeypatch, capsys):
    """transformers -> ours -> CTranslate2 -> ours, and the library reads what we exported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layout = LAYOUTS[name]
    folder, ours, out = (tmp_path / step for step in ("transformers", "ours", "exported"))
    folder.mkdir()
    publish(layout, folder)
    assert main(["convert", str(folder), str(ours)]) == 0
    assert main(["export", str(ours), str(out), "--format", "ctranslate2"]) == 0
    lines = [layout.prefix + text for text in layout.texts[:TEXTS]]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tagged = "<2" in layout.prefix or "t5" in name
    capsys.readouterr()
    said = ["--beam", "1", "--max-tokens", str(LENGTH), *([] if tagged else layout.flags)]
    assert main(["translate", "--model", str(out), *said, "--input", str(tmp_path / "in.txt")]) == 0
    written = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert written == written_by_ctranslate2(layout, folder, out, layout.prefix)
    assert len({*written}) > 2, "a model that always writes the same shows nothing"
