"""A model as a CTranslate2 directory, written without that library.

The tables that read such models say where each weight goes. What CTranslate2 reads beside them are
settings, stored as variables of no dimension, and lists of words.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert import ctranslate2
from mlx_transformer.convert.export import (
    check_expressible,
    check_start_has_position,
    float32_weights,
    position_tables,
    word_matrices,
)
from mlx_transformer.convert.mapping import expand
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import Side, Tokenizer
from mlx_transformer.tokenizer.transformers_files import SETTINGS

VERSION, SPEC, REVISION = 6, "TransformerSpec", 7
CODES = {np.dtype("f4"): 0, np.dtype("i1"): 1, np.dtype("i2"): 2, np.dtype("i4"): 3}
# SentencePiece models under the names that people look for.
PIECES = {
    "tokenizer.model": "sentencepiece.model",
    "source.model": "source.spm",
    "target.model": "target.spm",
    "source.spm": "source.spm",
    "target.spm": "target.spm",
}
CARD = """\
# A Transformer for CTranslate2

Exported by mlx-transformer, in float32; `compute_type` lets CTranslate2 round it as it loads.

    import ctranslate2, sentencepiece

    pieces = sentencepiece.SentencePieceProcessor("sentencepiece.model")
    translator = ctranslate2.Translator("this directory", compute_type="int8")
    (found,) = translator.translate_batch([pieces.encode("...", out_type=str)], beam_size=4)
    print(pieces.decode(found.hypotheses[0]))

A model with a `source.spm` and a `target.spm` is cut with the one and joined with the other.
"""
TRANSFORMERS_CARD = """\
# A Transformer for CTranslate2

Exported by mlx-transformer, in float32; `compute_type` lets CTranslate2 round it as it loads. A
tokenizer of transformers cuts its words, and puts languages and the end around a text.

    import ctranslate2, transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained("this directory")
    translator = ctranslate2.Translator("this directory", compute_type="int8")
    words = tokenizer.convert_ids_to_tokens(tokenizer.encode("..."))
    (found,) = translator.translate_batch([words], beam_size=4)
    ids = tokenizer.convert_tokens_to_ids(found.hypotheses[0])
    print(tokenizer.decode(ids, skip_special_tokens=True))

A model of many languages is told its own (`src_lang=` of `from_pretrained`) and the other
(`target_prefix=[["fra_Latn"]]` of `translate_batch`).
"""
Variables = dict[str, np.ndarray]


def export_ctranslate2(model: Transformer, tokenizer: Tokenizer | None, directory: Path) -> None:
    """Write the model, its words, its settings, and a README.md that says how to load them."""
    config = model.config
    _check(config)
    weights = float32_weights(model)
    variables = _layers(config, weights) | _around(config, weights)
    variables |= _positions(config, weights) | _settings(config)
    (directory / "model.bin").write_bytes(_file(variables))
    words = _words(config, tokenizer)
    _save_words(words, directory)
    _save_json(directory / "config.json", _config(config, tokenizer, words))
    of_transformers = tokenizer is not None and is_of_transformers(tokenizer)
    card = TRANSFORMERS_CARD if of_transformers else CARD
    (directory / "README.md").write_text(card, encoding="utf-8")
    for name, content in (tokenizer.files if tokenizer else {}).items():
        if of_transformers or name in PIECES:
            (directory / PIECES.get(name, name)).write_bytes(content)


def is_of_transformers(tokenizer: Tokenizer) -> bool:
    """Its files are those of a tokenizer of transformers, which knows what stands around a text."""
    return "tokenizer_class" in json.loads(tokenizer.files.get(SETTINGS, b"{}"))


def _check(config: ModelConfig) -> None:
    check_expressible(
        config, "CTranslate2", decoder_cell="self-attention", relative_per_layer=False
    )
    d_k, d_v = config.head_sizes
    if d_k != d_v:
        raise InputError(f"CTranslate2 cannot express d_k {d_k} beside d_v {d_v}: only equal ones")
    check_start_has_position(config, "CTranslate2")


# The variables


def _layers(config: ModelConfig, weights: Mapping[str, mx.array]) -> Variables:
    """Every weight that has a line in the table, taken apart where theirs are several."""
    depths = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    made: Variables = {}
    for name, rules in expand(ctranslate2.TABLE, depths).items():
        if name not in weights or name.endswith("_embedding.positions"):
            continue
        gated = config.gated_feed_forward and ".w_1." in name
        keys = rules[0 if gated else -1].keys
        parts = mx.split(weights[name], len(keys))
        made |= {key: np.array(part) for key, part in zip(keys, parts, strict=True)}
    return made


def _around(config: ModelConfig, weights: Mapping[str, mx.array]) -> Variables:
    matrices = (ctranslate2.SOURCE_WORDS[0], ctranslate2.TARGET_WORDS[0], ctranslate2.OUTPUT)
    arrays = zip(matrices, word_matrices(config, weights), strict=True)
    made = {name: np.array(array) for name, array in arrays}
    if config.output_bias:
        made[ctranslate2.OUTPUT_BIAS] = np.array(weights["output_bias"])
    return made


def _positions(config: ModelConfig, weights: Mapping[str, mx.array]) -> Variables:
    """A table a stack, or the bias by distance of a stack, which each of its layers has."""
    if config.positions != "relative":
        tables = zip(("source", "target"), position_tables(config, weights), strict=True)
        return {
            str(ctranslate2.TABLE[f"{side}_embedding.positions"]): np.array(table)
            for side, table in tables
        }
    made: Variables = {}
    for attention in _attentions(config):
        if attention.endswith("/self_attention"):
            stack = attention.partition("/")[0]
            bias = np.array(weights[f"{stack}.relative.0.weight"])
            made[f"{attention}/relative_attention_bias"] = bias
            distance = np.asarray(np.int32(config.relative_distance))
            made[f"{attention}/relative_attention_max_distance"] = distance
    return made


def _attentions(config: ModelConfig) -> list[str]:
    """The name of every attention, such as `decoder/layer_0/attention`"""
    encoder = [f"encoder/layer_{i}/self_attention" for i in range(config.encoder_layers)]
    decoder = [
        f"decoder/layer_{i}/{kind}"
        for i in range(config.decoder_layers)
        for kind in ("self_attention", "attention")
    ]
    return encoder + decoder


def _settings(config: ModelConfig) -> Variables:
    both: dict[str, Any] = {
        "num_heads": np.int16(config.h),
        "pre_norm": np.int8(config.norm == "pre"),
        "activation": np.int8(ctranslate2.ACTIVATIONS.index(config.activation)),
        "scale_embeddings": np.int8(config.scale_embedding),
    }
    made = {
        f"{stack}/{name}": value for stack in ("encoder", "decoder") for name, value in both.items()
    }
    made["encoder/embeddings_merge"] = np.int8(0)
    made["decoder/start_from_zero_embedding"] = np.int8(config.start_id is None)
    if config.logit_scale != 1:
        made["decoder/scale_outputs"] = np.float32(config.logit_scale)
    d_k, _ = config.head_sizes
    if not config.scale_attention or d_k * config.h != config.d_model:
        factor = np.float32(d_k**-0.5 if config.scale_attention else 1)
        made |= {f"{attention}/queries_scale": factor for attention in _attentions(config)}
    return {name: np.asarray(value) for name, value in made.items()}


def _file(variables: Variables) -> bytes:
    """The variables by name; of equal ones the first is stored, and the others are aliases."""
    stored: Variables = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[tuple[int, ...], bytes], str] = {}
    for name, array in sorted(variables.items()):
        first = seen.setdefault((array.shape, array.tobytes()), name) if array.ndim == 2 else name
        if first == name:
            stored[name] = array
        else:
            aliases[name] = first
    parts = [struct.pack("<I", VERSION), _string(SPEC), struct.pack("<II", REVISION, len(stored))]
    for name, array in stored.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        head = struct.pack("<BI", CODES[array.dtype], array.nbytes)
        parts += [_string(name), shape, head, array.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    parts += [_string(alias) + _string(name) for alias, name in aliases.items()]
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


# Words


def _words(config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[list[str], list[str]]:
    """A name for every row of both word matrices."""
    if tokenizer is None:
        return _named([], config.vocab_size, config), _named([], config.target_size, config)
    sides: list[tuple[Side, int]] = [
        (tokenizer.source, config.vocab_size),
        (tokenizer.target, config.target_size),
    ]
    source, target = (_named(_spelled(side, size), size, config) for side, size in sides)
    return source, target


def _spelled(side: Side, size: int) -> list[str]:
    """Pieces as the tokenizer itself spells them: those of bytes are not readable."""
    vocab: Mapping[str, int] | None = getattr(side, "vocab", None)
    if vocab is None:
        return side.tokens(range(size))
    by_id = {i: piece for piece, i in vocab.items()}
    return [by_id.get(i, "") for i in range(size)]


def _named(pieces: list[str], size: int, config: ModelConfig) -> list[str]:
    """Ids that are no pieces get a name that no text can contain, and padding its own."""
    special = {config.eos_id: "</s>", config.pad_id: "<pad>"}
    names = [piece or special.get(i, f"<unused {i}>") for i, piece in enumerate(pieces)]
    return names + [special.get(i, f"<unused {i}>") for i in range(len(names), size)]


def _save_words(words: tuple[list[str], list[str]], directory: Path) -> None:
    source, target = words
    named = {"shared": source} if source == target else {"source": source, "target": target}
    for name, listed in named.items():
        _save_json(directory / f"{name}_vocabulary.json", listed)


def _config(
    config: ModelConfig, tokenizer: Tokenizer | None, words: tuple[list[str], list[str]]
) -> dict[str, Any]:
    _, target = words
    end = target[config.eos_id]
    start = end if config.start_id is None else target[config.start_id]
    if tokenizer is None:
        ends = True
    else:  # a tokenizer of transformers ends sources itself
        ends = not is_of_transformers(tokenizer) and tokenizer.frame.after != ()
    return {
        "unk_token": target[tokenizer.unk_id] if tokenizer else "<unk>",
        "bos_token": start,
        "eos_token": end,
        "decoder_start_token": start,
        "add_source_bos": False,
        "add_source_eos": ends,
        "layer_norm_epsilon": config.norm_eps,
        "multi_query_attention": False,
    }


def _save_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
