"""FSMT models of Hugging Face transformers: fairseq's WMT19 models with a config.json."""

import json
from collections.abc import Mapping
from typing import Any

from mlx_transformer.convert import fairseq, huggingface
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.generation import generation
from mlx_transformer.convert.originals import transformers_model
from mlx_transformer.inputs.untrusted import read_json

END = "</w>"  # of a word; fairseq marks the pieces that go on instead, by @@


def settings(source: Source) -> dict[str, Any]:
    config = huggingface.config_of(source)
    return {
        **huggingface.settings(config),
        **fairseq.POSITIONS,
        "position_offset": config.integer("pad_token_id") + 1,
        "start_id": config.integer("decoder_start_token_id", default=2),
        "max_length": config.integer("max_position_embeddings", default=1024),
    }


def vocabulary(source: Source) -> dict[str, bytes]:
    """Its lists as the fairseq dictionaries and codes that they were made from."""
    folder = source.checkpoint.directory
    files: dict[str, bytes] = {}
    for side, short in (("source", "src"), ("target", "tgt")):
        listed = folder / f"vocab-{short}.json"
        if not listed.is_file():
            return {}
        files[f"dict.{side}.txt"] = _dictionary(read_json(listed))
    if (folder / "merges.txt").is_file():
        files["bpecodes"] = b"#version: 0.2\n" + (folder / "merges.txt").read_bytes()
    languages = source.checkpoint.fields("config.json").get("langs")
    settings: dict[str, Any] = {"moses": True, "normalised": True}
    match languages:
        case [str(first), str(second)]:
            settings |= {"source_lang": first, "target_lang": second}
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files


def _dictionary(ids: Mapping[str, Any]) -> bytes:
    """A word a line from the fifth id on: the first four are special everywhere."""
    words = {i: word for word, i in ids.items()}
    lines = []
    for i in range(4, len(words)):
        word = words.get(i, f"madeupword{i:04}{END}")
        lines.append(f"{word.removesuffix(END) if word.endswith(END) else word + '@@'} 1\n")
    return "".join(lines).encode()


FAMILY = Family(
    name="fsmt",
    title="an FSMT model",
    anchor="encoder.layers.0.fc1.weight",
    matches=huggingface.of_type("fsmt"),
    layers=fairseq.LAYERS,
    table=fairseq.TABLE,
    settings=settings,
    original=transformers_model,
    vocabulary=vocabulary,
    generation=generation,
)
