"""A model as a Hugging Face Marian directory, which transformers and CTranslate2 load.

Pre-norm models, which Marian has not, become Pegasus directories: the same tensors under the same
names, with a norm at the end of each stack.

Three things make ids come out equal in both of them.

CTranslate2 starts every Marian decoder from a zero vector, transformers from a token. A learned
start vector therefore moves into the first row of the decoder's position table, and both start
from a token whose vector is zero. That token is `<pad>`, and it is the last: CTranslate2 drops the
last row of the vocabulary. Where a model has no such row, one is appended, so no other id changes.

Both read the position tables of the file where it has them and compute sinusoids of their own
layout where it has not. The tables are always written: any layout, and learned ones, come along.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.export import (
    check_plain,
    check_start_has_position,
    float32_weights,
    position_tables,
    word_matrices,
)
from mlx_transformer.convert.mapping import NEVER
from mlx_transformer.errors import InputError
from mlx_transformer.model import Transformer
from mlx_transformer.tokenizer import Side, Tokenizer

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "gelu_sigmoid": "quick_gelu",
    "swish": "swish",
}

# Our parameter in a layer -> Marian's names, in the order in which ours stacks them.
LAYER = {
    "self_attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.out": ["self_attn.out_proj"],
    "self_attention_norm": ["self_attn_layer_norm"],
    "cross_attention.q": ["encoder_attn.q_proj"],
    "cross_attention.kv": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "cross_attention.out": ["encoder_attn.out_proj"],
    "cross_attention_norm": ["encoder_attn_layer_norm"],
    "feed_forward.w_1": ["fc1"],
    "feed_forward.w_2": ["fc2"],
    "feed_forward_norm": ["final_layer_norm"],
}
CARD = """\
# A Transformer in the layout of {kind.model_class}

Exported by mlx-transformer, in float32. In transformers:

    from transformers import {kind.model_class}, MarianTokenizer

    model = {kind.model_class}.from_pretrained("this directory")
    tokenizer = MarianTokenizer.from_pretrained("this directory")
    ids = model.generate(**tokenizer(["..."], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(ids, skip_special_tokens=True))

In CTranslate2:

    ct2-transformers-converter --model "this directory" --output_dir converted

The position tables are part of these weights: the decoder's first row holds the vector that it
starts from. transformers leaves such tables out when it saves a model of this kind. Before
`save_pretrained`, tell it not to: `model._keys_to_ignore_on_save = None`.
"""
PAD = "<pad>"


@dataclass(frozen=True)
class HubFormat:
    """A class of transformers, and what a model must be to become one."""

    name: str
    model_type: str
    model_class: str
    other: str  # which format has the other order of norms
    needs: Mapping[str, Any]
    says: Mapping[str, Any] = field(default_factory=dict)  # in config.json, beside what all say


MARIAN = HubFormat(
    "a Marian model",
    "marian",
    "MarianMTModel",
    "pegasus has pre-norm",
    {"norm": "post", "encoder_final_norm": False, "decoder_final_norm": False},
)
PEGASUS = HubFormat(
    "a Pegasus model",
    "pegasus",
    "PegasusForConditionalGeneration",
    "marian has post-norm",
    {
        "norm": "pre",
        "encoder_final_norm": True,
        "decoder_final_norm": True,
        "shared_embeddings": True,
        "tied_output": True,
    },
    {"normalize_before": True, "normalize_embedding": False},  # CTranslate2 looks for these
)


def export_marian(model: Transformer, tokenizer: Tokenizer | None, directory: Path) -> None:
    export_transformers(MARIAN, model, tokenizer, directory)


def export_pegasus(model: Transformer, tokenizer: Tokenizer | None, directory: Path) -> None:
    export_transformers(PEGASUS, model, tokenizer, directory)


def export_transformers(
    kind: HubFormat, model: Transformer, tokenizer: Tokenizer | None, directory: Path
) -> None:
    """Write weights, configs and tokenizer, and a README.md that says how to load them."""
    config = model.config
    if config.norm != (norm := kind.needs["norm"]):
        raise InputError(
            f"{kind.name} cannot express norm {config.norm!r}: it must be {norm!r} ({kind.other})"
        )
    check_plain(
        config,
        kind.name,
        embedding_norm=False,
        norm_eps=1e-5,
        logit_scale=1.0,
        **kind.needs,
    )
    check_start_has_position(config, kind.name)
    weights = float32_weights(model)
    vocabulary = _vocabulary(config, weights)
    tensors = _layers(config, weights) | _around(config, weights, vocabulary)
    mx.save_safetensors(str(directory / "model.safetensors"), tensors, metadata={"format": "pt"})
    (directory / "README.md").write_text(CARD.format(kind=kind), encoding="utf-8")
    _save_json(directory / "config.json", _config(kind, config, vocabulary))
    _save_json(directory / "generation_config.json", _generation_config(config, vocabulary))
    if tokenizer is not None:
        _save_tokenizer(config, tokenizer, vocabulary, directory)


def has_sentencepiece(tokenizer: Tokenizer) -> bool:
    """A list of words cut beforehand has no place in a Marian directory."""
    return any(name.endswith((".spm", ".model")) for name in tokenizer.files)


@dataclass(frozen=True)
class WordRows:
    """Rows of both word matrices; the last is the token that pads and starts, its vector zero."""

    size: int
    grown: bool

    @property
    def pad_id(self) -> int:
        return self.size - 1


def _vocabulary(config: ModelConfig, weights: Mapping[str, mx.array]) -> WordRows:
    source, target, _ = word_matrices(config, weights)
    last = len(source) - 1
    starts_from_zero = config.start_id in (None, last) and not mx.any(target[last])
    if config.pad_id == last == len(target) - 1 and starts_from_zero:
        return WordRows(len(source), grown=False)
    return WordRows(max(len(source), len(target)) + 1, grown=True)


def _layers(config: ModelConfig, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The two stacks under Marian's names."""
    tensors = {}
    for name, array in weights.items():
        if match := re.fullmatch(r"(\w+\.layers\.\d+)\.(.+)\.(weight|bias)", name):
            layer, module, kind = match.groups()
            parts = mx.split(array, len(LAYER[module]))
            for theirs, part in zip(LAYER[module], parts, strict=True):
                tensors[f"model.{layer}.{theirs}.{kind}"] = part
                if "_proj" in theirs and not config.attention_bias:
                    tensors[f"model.{layer}.{theirs}.bias"] = mx.zeros(config.d_model)
    return tensors


def _around(
    config: ModelConfig, weights: Mapping[str, mx.array], vocabulary: WordRows
) -> dict[str, mx.array]:
    """Embeddings, positions and output under Marian's names."""
    source, target, output = (
        _grow(matrix, vocabulary.size) for matrix in word_matrices(config, weights)
    )
    encoder_positions, decoder_positions = _positions(config, weights, target, vocabulary)
    bias = weights.get("output_bias", mx.zeros(config.target_size))
    tensors = {
        "model.encoder.embed_positions.weight": encoder_positions,
        "model.decoder.embed_positions.weight": decoder_positions,
        "final_logits_bias": _grow(bias, vocabulary.size, NEVER)[None],
    }
    for name, array in weights.items():
        if match := re.fullmatch(r"(encoder|decoder)\.norm\.(weight|bias)", name):
            tensors[f"model.{match[1]}.layer_norm.{match[2]}"] = array
    if _one_matrix(config):
        return tensors | {"model.shared.weight": source}
    tensors["model.encoder.embed_tokens.weight"] = source
    tensors["model.decoder.embed_tokens.weight"] = target
    return tensors if config.tied_output else tensors | {"lm_head.weight": output}


def _one_matrix(config: ModelConfig) -> bool:
    return config.shared_embeddings and config.tied_output


def _grow(rows: mx.array, size: int, value: float = 0.0) -> mx.array:
    """(V,...) -> (size,...)"""
    return mx.pad(rows, [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1), constant_values=value)


def _positions(
    config: ModelConfig, weights: Mapping[str, mx.array], target: mx.array, vocabulary: WordRows
) -> tuple[mx.array, mx.array]:
    """The tables (max_length,d_model) of encoder and decoder, a start vector in the latter's."""
    encoder, decoder = position_tables(config, weights)
    if vocabulary.grown and config.start_id is not None:
        scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        first = target[config.start_id] * scale + decoder[0]
        decoder = mx.concatenate([first[None], decoder[1:]])
    return encoder, decoder


def _config(kind: HubFormat, config: ModelConfig, vocabulary: WordRows) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (
            ("layers", layers),
            ("ffn_dim", config.d_ff),
            ("attention_heads", config.h),
        )
    }
    return sides | {
        **kind.says,
        "architectures": [kind.model_class],
        "model_type": kind.model_type,
        "is_encoder_decoder": True,
        "dtype": "float32",
        "d_model": config.d_model,
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "scale_embedding": config.scale_embedding,
        "max_position_embeddings": config.max_length,
        "vocab_size": vocabulary.size,
        "decoder_vocab_size": vocabulary.size,
        "share_encoder_decoder_embeddings": _one_matrix(config),
        "tie_word_embeddings": config.tied_output,
        "pad_token_id": vocabulary.pad_id,
        "decoder_start_token_id": vocabulary.pad_id,
        "eos_token_id": config.eos_id,
        "forced_eos_token_id": None,
    }


def _generation_config(config: ModelConfig, vocabulary: WordRows) -> dict[str, Any]:
    specials = {vocabulary.pad_id, config.pad_id, config.start_id}
    never = sorted(i for i in specials if i is not None and i != config.eos_id)
    return {
        "pad_token_id": vocabulary.pad_id,
        "decoder_start_token_id": vocabulary.pad_id,
        "eos_token_id": config.eos_id,
        "bad_words_ids": [[token] for token in never],
        "max_length": config.max_length,
        "num_beams": 4,
    }


def _save_tokenizer(
    config: ModelConfig, tokenizer: Tokenizer, vocabulary: WordRows, directory: Path
) -> None:
    for side in ("source", "target"):
        names = (f"{side}.spm", f"{side}.model", "sentencepiece.bpe.model", "tokenizer.model")
        model = next(tokenizer.files[name] for name in names if name in tokenizer.files)
        (directory / f"{side}.spm").write_bytes(model)
    source, target = (_pieces(s, vocabulary) for s in (tokenizer.source, tokenizer.target))
    _save_json(directory / "vocab.json", {piece: i for i, piece in enumerate(source)})
    if target != source:
        _save_json(directory / "target_vocab.json", {piece: i for i, piece in enumerate(target)})
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": target != source,
        "model_max_length": config.max_length,
        "eos_token": source[config.eos_id],
        "unk_token": source[tokenizer.source.unk_id],
        "pad_token": PAD,
    }
    _save_json(directory / "tokenizer_config.json", settings)


def _pieces(side: Side, vocabulary: WordRows) -> list[str]:
    """A name for every row: ids that are no pieces get one that no text can contain."""
    pieces = side.tokens(range(vocabulary.size - 1))
    unnamed = ("", PAD)
    return [f"<unused {i}>" if p in unnamed else p for i, p in enumerate(pieces)] + [PAD]


def _save_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
