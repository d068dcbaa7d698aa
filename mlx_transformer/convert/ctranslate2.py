"""CTranslate2 models, such as all that Argos Translate installs."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_transformer.convert.ctranslate2_file import bytes_of
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import (
    NEVER,
    ZEROS,
    Line,
    Rule,
    Table,
    stack,
    under,
    with_extra_rows,
)
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.t5 import MAX_LENGTH
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.tokenizer import transformers_files


def norm(ours: str, theirs: str) -> Table:
    return {f"{ours}.weight": f"{theirs}/gamma", f"{ours}.bias": f"{theirs}/beta"}


ENCODER_LAYER: Table = {
    "self_attention.qkv.*": "self_attention/linear_0/*",
    "self_attention.out.*": "self_attention/linear_1/*",
    **norm("self_attention_norm", "self_attention/layer_norm"),
    "feed_forward.w_1.*": [stack("ffn/linear_0/*", "ffn/linear_0_noact/*"), "ffn/linear_0/*"],
    "feed_forward.w_2.*": "ffn/linear_1/*",
    **norm("feed_forward_norm", "ffn/layer_norm"),
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.q.*": "attention/linear_0/*",
    "cross_attention.kv.*": "attention/linear_1/*",
    "cross_attention.out.*": "attention/linear_2/*",
    **norm("cross_attention_norm", "attention/layer_norm"),
}
LAYERS = {"encoder": "encoder/layer_{i}/", "decoder": "decoder/layer_{i}/"}
RELATIVE_BIAS = {
    stack: f"{stack}/layer_0/self_attention/relative_attention_bias" for stack in LAYERS
}
TABLE: Table = {
    "source_embedding.positions": "encoder/position_encodings/encodings",
    "target_embedding.positions": "decoder/position_encodings/encodings",
    **norm("source_embedding.norm", "encoder/layernorm_embedding"),
    **norm("target_embedding.norm", "decoder/layernorm_embedding"),
    **{f"{stack}.relative.0.weight": bias for stack, bias in RELATIVE_BIAS.items()},
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    **norm("encoder.norm", "encoder/layer_norm"),
    **norm("decoder.norm", "decoder/layer_norm"),
}
# Words of encoder and decoder, the first of these names that a model has.
SOURCE_WORDS = ("encoder/embeddings_0/weight", "encoder/embeddings/weight")
TARGET_WORDS = ("decoder/embeddings/weight",)
QUERIES = "encoder/layer_0/self_attention/linear_0/weight"  # and keys and values
OUTPUT, OUTPUT_BIAS = "decoder/projection/weight", "decoder/projection/bias"
# The number that a model has for its activation; the two after these are tanh and sigmoid.
ACTIVATIONS = ("relu", "gelu_tanh", "swish", "gelu", "gelu_sigmoid")
# Settings that we read, or that change no translation; any other one must be off.
SETTINGS = re.compile(
    r"((encoder|decoder)/)?(num_heads|pre_norm|activation|scale_embeddings|scale_outputs"
    r"|start_from_zero_embedding|alignment_(layer|heads)|alibi_use_positive_positions|scale_alibi"
    r"|embeddings/multiply_by_sqrt_depth)"
    r"|(unk|bos|eos)_token|with_(source_bos|source_eos|target_bos)|spec|revision|version"
    r"|(encoder|decoder)/layer_\d+/(self_)?attention/(queries_scale|relative_attention_max_distance)"
)
# The same matrix in every layer of a stack, as in T5.
REPEATED_BIAS = r"(encoder|decoder)/layer_[1-9]\d*/self_attention/relative_attention_bias"
# Whose tokenizer it is, by a word of the model, where the files do not say.
TOKENIZERS = {"eng_Latn": "NllbTokenizer", "__en__": "M2M100Tokenizer"}
PADDING = ("<blank>", "<pad>")
# What a model without a table of positions computes.
POSITIONS = {"position_layout": "halves", "position_divisor_minus_one": True}
ARGOS_CODES = "bpe.model"  # subword-nmt's, for words cut by Moses
SENTENCEPIECE = (
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.model",
    "vocab.spm",
)


def found(source: Source) -> dict[str, Line]:
    """The word matrices, with a row more where no word could mean padding."""
    size = padding_id(source) + 1

    def grown(keys: tuple[str, ...], value: float = 0.0) -> list[str | Rule]:
        here = {key: source.tensors[key].shape[0] for key in keys if source.has(key)}
        return [with_extra_rows(k, value, size - n) if size > n else k for k, n in here.items()]

    added = size - source.rows(*TARGET_WORDS)
    no_bias = [replace(ZEROS, extra=NEVER, extra_rows=added)] if added > 0 else []
    return {
        "source_words.weight": grown(SOURCE_WORDS),
        "target_words.weight": grown(TARGET_WORDS),
        "output.weight": grown((OUTPUT,)),
        "output_bias": [*grown((OUTPUT_BIAS,), NEVER), *no_bias],
    }


def padding_id(source: Source) -> int:
    """The id of a word that both vocabularies have for padding, or one beyond all words."""
    ids = [word_ids(source, side) for side in ("source", "target")]
    for word in PADDING:
        if word in ids[0] and ids[0][word] == ids[1].get(word):
            return ids[0][word]
    return max(source.rows(*SOURCE_WORDS), source.rows(*TARGET_WORDS))


def word_ids(source: Source, side: str) -> dict[str, int]:
    listed = source.checkpoint.metadata[f"{side}_words"]
    assert isinstance(listed, list)
    return {word: i for i, word in enumerate(listed)}


def settings(source: Source) -> dict[str, Any]:
    _check_supported(source)
    activation = setting(source, "activation", 0)
    if activation not in range(len(ACTIVATIONS)):
        raise InputError(f"CTranslate2's activation {activation} is not supported")
    rms = not source.has("decoder/layer_0/ffn/layer_norm/beta")
    config = source.checkpoint.fields("ctranslate2")
    usual = 16 if setting(source, "spec", "") == "TransformerBig" else 8
    heads = setting(source, "num_heads", usual)
    if type(heads) is not int or heads < 1:
        raise InputError(f"CTranslate2's num_heads must be a number of heads, not {heads}")
    has_table = source.has("decoder/position_encodings/encodings")
    return {
        "h": heads,
        "norm": "pre" if setting(source, "pre_norm", 1) else "post",
        "norm_kind": "rms" if rms else "layer",
        "norm_eps": config.number("layer_norm_epsilon", default=1e-6 if rms else 1e-5),
        "activation": ACTIVATIONS[activation],
        **POSITIONS,
        "position_offset": 0 if has_table else 1,
        "scale_embedding": _scales_words(source),
        "logit_scale": setting(source, "scale_outputs", 1),
        "scale_attention": _scales_attention(source, heads),
        **_relative_positions(source),
        **_special_ids(source),
    }


def setting(source: Source, name: str, default: Any) -> Any:
    """A setting of both stacks; before revision 5 of the model it stood outside of them."""
    known = source.checkpoint.fields("settings")
    values = {known[key] for key in (f"encoder/{name}", f"decoder/{name}", name) if key in known}
    if len(values) > 1:
        raise InputError(f"the model has one {name} for both stacks, but the checkpoint has two")
    return values.pop() if values else default


def _check_supported(source: Source) -> None:
    for name, value in source.checkpoint.fields("settings").items():
        if value and not SETTINGS.fullmatch(name):
            raise InputError(f"CTranslate2's {shown(name)} is not supported")
    for name, tensor in source.tensors.items():
        if "relative_position" in name:
            raise InputError("CTranslate2's relative_position_keys are not supported")
        if stack := re.fullmatch(REPEATED_BIAS, name):
            first = source.tensors.get(RELATIVE_BIAS[stack[1]])
            if first is None or not np.array_equal(tensor.numpy(), first.numpy()):
                raise InputError(f"{shown(name)} is not that of the first layer")


def _scales_attention(source: Source, heads: int) -> bool:
    """Whether scores are divided by sqrt(d_k): so they are where no factor is stored."""
    known = source.checkpoint.fields("settings")
    factors = [known.number(name) for name in known if name.endswith("/queries_scale")]
    d_k = source.tensors[QUERIES].shape[0] / 3 / heads
    if all(math.isclose(factor * factor * d_k, 1, rel_tol=1e-3) for factor in factors):
        return True
    if unusual := [factor for factor in factors if factor != 1]:
        raise InputError(f"scores are multiplied by {unusual[0]}, neither by 1 nor by 1/sqrt(d_k)")
    return False


def _relative_positions(source: Source) -> dict[str, Any]:
    """As in T5: a bias by distance, and no end of positions."""
    if not source.has(RELATIVE_BIAS["decoder"]):
        return {}
    distance = setting(source, "layer_0/self_attention/relative_attention_max_distance", 128)
    return {
        "positions": "relative",
        "relative_distance": distance,
        "max_length": MAX_LENGTH,
    }


def _scales_words(source: Source) -> bool:
    """Whether words are multiplied by sqrt(d_model): a flag says so, or the factor itself."""
    d_model = source.tensors[TARGET_WORDS[0]].shape[-1]
    flag = setting(source, "embeddings/multiply_by_sqrt_depth", 1)  # the older name
    factor = setting(source, "scale_embeddings", flag)
    if isinstance(factor, int):
        return factor != 0
    if factor != 1 and not math.isclose(factor, math.sqrt(d_model), rel_tol=1e-3):
        raise InputError(f"words are multiplied by {factor}, neither by 1 nor by sqrt(d_model)")
    return factor != 1


def _special_ids(source: Source) -> dict[str, int | None]:
    target = word_ids(source, "target")
    end = token(source, "eos_token", "</s>")
    eos_id = _id(target, end)
    if _adds(source, "eos") and _id(word_ids(source, "source"), end) != eos_id:
        raise InputError(f"{end} has two ids, one for sources and one for targets")
    from_zero = setting(source, "start_from_zero_embedding", 0)
    # Before format 6 the start was one of two tokens, and a flag said which.
    first = token(source, "bos_token", "<s>") if setting(source, "with_target_bos", 1) else end
    start = None if from_zero else _id(target, token(source, "decoder_start_token", first))
    return {"pad_id": padding_id(source), "start_id": start, "eos_id": eos_id}


def token(source: Source, name: str, default: str) -> str:
    """A special word: `config.json` names it, or a variable before format 6."""
    return source.checkpoint.fields("ctranslate2", "settings").text(name, default=default)


def _id(ids: Mapping[str, int], word: str) -> int:
    if word not in ids:
        raise InputError(f"the vocabulary has no {word}")
    return ids[word]


def _adds(source: Source, what: str) -> bool:
    """Whether `bos` or `eos` stands around a source.

    Marian's sources always end in `eos`. One converted from transformers does not say so, because
    there the tokenizer adds it. Only Marian's decoders begin with zeros.
    """
    if what == "eos" and setting(source, "start_from_zero_embedding", 0):
        return True
    flag = bool(setting(source, f"with_source_{what}", 0))
    return source.checkpoint.fields("ctranslate2").flag(f"add_source_{what}", default=flag)


def generation(source: Source) -> dict[str, Any]:
    """As Argos Translate searches; CTranslate2 itself leaves it to whoever calls it."""
    is_argos = bool(source.checkpoint.fields("argos"))
    return {"beam": 4, "alpha": 0.2, "length_penalty": "plain"} if is_argos else {}


# The tokenizer


def vocabulary(source: Source) -> Mapping[str, bytes]:
    """SentencePiece cuts, or BPE codes do; the model's own lists number the pieces."""
    files = source.checkpoint.metadata["files"]
    assert isinstance(files, dict)
    if copied := _of_transformers(source, files):
        return copied
    made = {
        "vocab.json": _numbered(source, "source"),
        "target_vocab.json": _numbered(source, "target"),
    }
    if made["vocab.json"] == made["target_vocab.json"]:
        del made["target_vocab.json"]
    made["tokenizer_config.json"] = json.dumps(_tokenizer_settings(source)).encode()
    if ARGOS_CODES in files:
        return made | {"bpecodes": bytes_of(files[ARGOS_CODES], ARGOS_CODES)}
    one = next((name for name in SENTENCEPIECE if name in files), None)
    for name in ("source.spm", "target.spm"):
        kept = name if name in files else one
        if kept is not None:
            made[name] = bytes_of(files[kept], kept)
    return made


def _of_transformers(source: Source, files: Mapping[str, object]) -> Mapping[str, bytes]:
    """The tokenizer that a model converted from transformers was published with: ids are the same.

    Marian's is not among them: it is two SentencePiece models and the model's own lists.
    """
    if "source.spm" in files or source.checkpoint.fields("argos"):
        return {}
    words = word_ids(source, "target")
    named = next((kind for word, kind in TOKENIZERS.items() if word in words), None)
    if named is None and source.has(RELATIVE_BIAS["decoder"]):
        named = "T5Tokenizer"
    return transformers_files.collect(source.checkpoint.directory, named)


def _numbered(source: Source, side: str) -> bytes:
    ids = word_ids(source, side)
    unknown = token(source, "unk_token", "<unk>")
    if unknown in ids:
        ids["<unk>"] = ids[unknown]
    return json.dumps(ids, ensure_ascii=False).encode()


def _tokenizer_settings(source: Source) -> dict[str, Any]:
    """The languages, where they are known, and what stands around a source."""
    argos = source.checkpoint.fields("argos")
    named = {"source_lang": argos.get("from_code"), "target_lang": argos.get("to_code")}
    known: dict[str, Any] = {key: code for key, code in named.items() if isinstance(code, str)}
    if ARGOS_CODES in source.checkpoint.fields("files"):
        known |= {"normalised": True, "dashes": False}
    frame: dict[str, list[int]] = {}
    if _adds(source, "bos"):
        frame["before"] = [_id(word_ids(source, "source"), token(source, "bos_token", "<s>"))]
    if not _adds(source, "eos"):
        frame["after"] = []
    return known | ({"frame": frame} if frame else {})


# To run it without us

# Attention and number of a projection -> what is stacked in it.
STACKED = {
    ("self_attention", "0"): "qkv",
    ("self_attention", "1"): "o",
    ("attention", "0"): "q",
    ("attention", "1"): "kv",
    ("attention", "2"): "o",
}


def tidied(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """q, k and v apart, and norms with `weight` and `bias`."""
    made: dict[str, np.ndarray] = {}
    for key, values in tensors.items():
        place, _, kind = key.rpartition("/")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        attention, _, number = place.rpartition("/linear_")
        stacked = STACKED.get((attention.rpartition("/")[2], number))
        if stacked is None:
            made[f"{place}.{kind}"] = values
            continue
        for letter, rows in zip(stacked, np.split(values, len(stacked)), strict=True):
            made[f"{attention}/{letter}.{kind}"] = rows
    return made


TENSOR_NAMES = TensorNames(
    words=("encoder/embeddings_0.weight|encoder/embeddings.weight", "decoder/embeddings.weight"),
    positions=(
        "encoder/position_encodings.encodings",
        "decoder/position_encodings.encodings",
    ),
    embedding_norms=("encoder/layernorm_embedding", "decoder/layernorm_embedding"),
    layers=("encoder/layer_{i}/", "decoder/layer_{i}/"),
    attentions=("self_attention/", "attention/"),
    projections=("q", "k", "v", "o"),
    feed_forward=("ffn/linear_0", "ffn/linear_1"),
    norms=(
        ["self_attention/layer_norm", "ffn/layer_norm"],
        ["self_attention/layer_norm", "attention/layer_norm", "ffn/layer_norm"],
    ),
    final_norms=("encoder/layer_norm", "decoder/layer_norm"),
    output="decoder/projection",
    tidy=tidied,
)
FAMILY = Family(
    name="ctranslate2",
    title="a CTranslate2 Transformer",
    anchor=QUERIES,
    layers=LAYERS,
    table=TABLE,
    ignored=(REPEATED_BIAS,),
    found=found,
    settings=settings,
    original=plain_pass("ctranslate2", TENSOR_NAMES),
    vocabulary=vocabulary,
    generation=generation,
)
