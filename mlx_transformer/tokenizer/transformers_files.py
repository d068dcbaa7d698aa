"""What a converted model keeps of a tokenizer of transformers.

The vocabulary is copied. The settings that matter go into one tokenizer_config.json, and what
transformers reads elsewhere or leaves to the class of the model is spelled out there.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_transformer.inputs.untrusted import read_json

SETTINGS = "tokenizer_config.json"
SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model")
VOCABULARIES = (
    *("tokenizer.json", *SENTENCEPIECE),
    *("vocab.json", "target_vocab.json", "merges.txt", "vocab.txt", "characters.json"),
)
# The class of a model_type whose files do not name one.
CLASSES = {
    "m2m_100": "M2M100Tokenizer",
    "nllb": "NllbTokenizer",
    "mbart": "MBartTokenizer",
    "bart": "BartTokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "umt5": "T5Tokenizer",
    "gpt2": "GPT2Tokenizer",
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
KEPT = (
    "tokenizer_class",
    "src_lang",
    "tgt_lang",
    "legacy_behaviour",
    "language_codes",
    "offset",
    "extra_ids",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "frame",
)


def collect(directory: Path, unnamed: str | None = None) -> dict[str, bytes]:
    """Content by name of the files that this directory's tokenizer needs; none: it has none.

    `unnamed` is its class where no file names one.
    """
    files = {n: (directory / n).read_bytes() for n in VOCABULARIES if (directory / n).is_file()}
    settings = _settings(directory, files, unnamed)
    kind = settings.get("tokenizer_class")
    if kind is None or not (files or kind == "ByT5Tokenizer"):
        return {}
    if kind == "ByT5Tokenizer":
        files = {}
    elif kind == "M2M100Tokenizer":
        files.pop("tokenizer.json", None)  # transformers does not read it either
    elif "tokenizer.json" in files:
        files = {"tokenizer.json": files["tokenizer.json"]}
    return {**files, SETTINGS: json.dumps(settings, indent=2).encode()}


def _settings(directory: Path, files: Mapping[str, bytes], unnamed: str | None) -> dict[str, Any]:
    own, model, generation = (
        read_settings(directory / name)
        for name in (SETTINGS, "config.json", "generation_config.json")
    )
    settings = {key: own[key] for key in KEPT if own.get(key) is not None}
    kind = own.get("tokenizer_class") or model.get("tokenizer_class")
    kind = kind or CLASSES.get(str(model.get("model_type")), unnamed)
    if kind is not None:
        settings["tokenizer_class"] = _one_name(str(kind), files)
    for name in ("vocab_size", "forced_bos_token_id", "bos_token_id", "decoder_start_token_id"):
        found = [c[name] for c in (own, generation, model) if type(c.get(name)) is int]
        if found and 0 <= found[0] <= settings.get("vocab_size", found[0]):
            settings[name] = found[0]
    prefixes = own.get("prefixes") or _prefixes(model.get("task_specific_params"))
    return settings | ({"prefixes": prefixes} if prefixes else {})


def _one_name(kind: str, files: Mapping[str, bytes]) -> str:
    """Today's name of the class: fast and slow ones do the same."""
    kind = kind.removesuffix("Fast")
    if kind == "M2M100Tokenizer" and "vocab.json" not in files:
        return "NllbTokenizer"  # published under the model's own type
    return {"MT5Tokenizer": "T5Tokenizer", "DistilBertTokenizer": "BertTokenizer"}.get(kind, kind)


def _prefixes(tasks: object) -> dict[str, str]:
    """{"en to de": "translate English to German: "} out of T5's task_specific_params."""
    found = {}
    for task, values in tasks.items() if isinstance(tasks, dict) else ():
        pair = re.fullmatch(r"translation_(\w+)_to_(\w+)", str(task))
        if pair and isinstance(values, dict) and isinstance(values.get("prefix"), str):
            found[f"{pair[1]} to {pair[2]}"] = values["prefix"]
    return found


def read_settings(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
