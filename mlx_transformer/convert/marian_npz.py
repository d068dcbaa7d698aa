"""Models of the Marian C++ toolkit, as they are (`model.npz`)."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Table, stack, transposed, under, with_extra_rows
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError

CONFIG = "special:model.yml"
# The bias of the padding word, which must never be the best one; it fits into a float16.
NEVER = -10_000.0


def linear(ours: str, *theirs: str) -> Table:
    """`_Wq` and `_bq` where others have `q.weight` and `q.bias`; matrices are (in, out)."""
    return {
        f"{ours}.weight": transposed(*(key.replace("?", "W") for key in theirs)),
        f"{ours}.bias": stack(*(key.replace("?", "b") for key in theirs)),
    }


def norm(ours: str, theirs: str) -> Table:
    """`_pre` is added to the names of norms that come before what they are named after."""
    return {
        f"{ours}.weight": [f"{theirs}_ln_scale", f"{theirs}_ln_scale_pre"],
        f"{ours}.bias": [f"{theirs}_ln_bias", f"{theirs}_ln_bias_pre"],
    }


ENCODER_LAYER: Table = {
    **linear("self_attention.qkv", "self_?q", "self_?k", "self_?v"),
    **linear("self_attention.out", "self_?o"),
    **norm("self_attention_norm", "self_Wo"),
    **linear("feed_forward.w_1", "ffn_?1"),
    **linear("feed_forward.w_2", "ffn_?2"),
    **norm("feed_forward_norm", "ffn_ffn"),
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    **linear("cross_attention.q", "context_?q"),
    **linear("cross_attention.kv", "context_?k", "context_?v"),
    **linear("cross_attention.out", "context_?o"),
    **norm("cross_attention_norm", "context_Wo"),
}
LAYERS = {"encoder": "encoder_l{n}_", "decoder": "decoder_l{n}_"}
# Marian masks by length and has no word for padding: one is added after the last.
TABLE: Table = {
    "source_words.weight": [with_extra_rows("encoder_Wemb", 0), with_extra_rows("Wemb", 0)],
    "target_words.weight": [with_extra_rows("decoder_Wemb", 0), with_extra_rows("Wemb", 0)],
    "output.weight": [
        with_extra_rows("decoder_ff_logit_out_Wt", 0),
        replace(transposed("decoder_ff_logit_out_W"), extra=0),
    ],
    "output_bias": with_extra_rows("decoder_ff_logit_out_b", NEVER),
    "source_embedding.positions": "Wpos",
    "target_embedding.positions": "Wpos",
    **norm("source_embedding.norm", "encoder_emb"),
    **norm("target_embedding.norm", "decoder_emb"),
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    **norm("encoder.norm", "encoder_top"),
    **norm("decoder.norm", "decoder_top"),
}
ACTIVATIONS = ("relu", "swish", "gelu")


def settings(source: Source) -> dict[str, Any]:
    config = config_of(source)
    _check_supported(config)
    return {
        "h": int(config.get("transformer-heads", "8")),
        "norm": "pre" if "n" in config.get("transformer-preprocess", "") else "post",
        "norm_eps": 1e-9,
        "activation": config.get("transformer-ffn-activation", "swish"),
        "position_layout": "halves",
        "position_divisor_minus_one": True,
        # Where positions are learned, word vectors are not scaled.
        "scale_embedding": not source.has("Wpos"),
        "pad_id": padding_id(source),
        "start_id": None,  # a zero vector
        "eos_id": 0,
    }


def padding_id(source: Source) -> int:
    words = next(key for key in ("encoder_Wemb", "Wemb") if source.has(key))
    return source.tensors[words].shape[0]


def _check_supported(config: Mapping[str, str]) -> None:
    for name, allowed in {
        "type": ("transformer",),
        "transformer-decoder-autoreg": ("self-attention",),
        "transformer-no-projection": ("false",),
        "transformer-preprocess": ("", "d", "n", "nd"),
        "transformer-postprocess": ("dan", "an", "da", "a"),
        "transformer-postprocess-emb": ("", "d", "n", "nd"),
        "transformer-ffn-activation": ACTIVATIONS,
        "transformer-ffn-depth": ("2",),
    }.items():
        value = config.get(name, allowed[0])
        if value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise InputError(f"Marian's {name} {value!r} is not supported, only {listed}")
    if not config.get("transformer-heads", "8").isdecimal():
        raise InputError("Marian's transformer-heads is not a number")


def config_of(source: Source) -> dict[str, str]:
    """The plain `name: value` lines of the YAML text that Marian keeps in the file."""
    if not source.has(CONFIG):
        raise InputError(f"the file has no {CONFIG}, so it does not say what model it is")
    text = source.tensors[CONFIG].numpy().tobytes().rstrip(b"\0").decode("utf-8", "replace")
    lines = re.findall(r"^([\w-]+):[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE)
    return {name: value.strip("\"'") for name, value in lines}


def vocabulary(source: Source) -> Mapping[str, Path | bytes]:
    """SentencePiece models and a YAML vocabulary beside the file, or a SentencePiece vocabulary."""
    folder = source.checkpoint.directory
    if (folder / "vocab.spm").is_file():
        return {"tokenizer.model": folder / "vocab.spm"}
    files: dict[str, Path | bytes] = {n: folder / n for n in ("source.spm", "target.spm")}
    lists = list(folder.glob("*vocab.yml"))
    if len(lists) == 1:
        ids = {**read_vocabulary(lists[0]), "<pad>": padding_id(source)}
        files["vocab.json"] = json.dumps(ids, ensure_ascii=False).encode()
    return files


def read_vocabulary(path: Path) -> dict[str, int]:
    """`word: id` a line, the word in YAML's quotes where it needs them."""
    ids: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, number = line.rpartition(":")
        if not number.strip().isdecimal():
            raise InputError(f"{path} has the line {line!r}, which is not `word: id`")
        if word.startswith('"'):
            word = re.sub(r"\\(.)", r"\1", word[1:-1])
        elif word.startswith("'"):
            word = word[1:-1].replace("''", "'")
        ids[word] = int(number)
    return ids


# Marian's names -> ours for the plain pass; all of its arrays have two axes, biases (1,n).
TIDY_NAMES = (
    (r"decoder_ff_logit_out_Wt?", "decoder_ff_logit_out.weight"),
    (r"decoder_ff_logit_out_b", "decoder_ff_logit_out.bias"),
    (r"(.+_)W([qkvo12])", r"\1\2.weight"),
    (r"(.+_)b([qkvo12])", r"\1\2.bias"),
    (r"(.+_ln)_scale(_pre)?", r"\1.weight"),
    (r"(.+_ln)_bias(_pre)?", r"\1.bias"),
)


def tidied(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(_tidied(key, values) for key, values in tensors.items())


def _tidied(key: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    for pattern, replacement in TIDY_NAMES:
        if match := re.fullmatch(pattern, key):
            rows_are_outputs = key.endswith("_Wt")
            matrix = values if rows_are_outputs else values.T
            return match.expand(replacement), values[0] if len(values) == 1 else matrix
    return key, values


TENSOR_NAMES = TensorNames(
    words=("encoder_Wemb|Wemb", "decoder_Wemb|Wemb"),
    positions=("Wpos", "Wpos"),
    embedding_norms=("encoder_emb_ln", "decoder_emb_ln"),
    layers=("encoder_l{n}_", "decoder_l{n}_"),
    attentions=("self_", "context_"),
    projections=("q", "k", "v", "o"),
    feed_forward=("ffn_1", "ffn_2"),
    norms=(
        ["self_Wo_ln", "ffn_ffn_ln"],
        ["self_Wo_ln", "context_Wo_ln", "ffn_ffn_ln"],
    ),
    final_norms=("encoder_top_ln", "decoder_top_ln"),
    output="decoder_ff_logit_out",
    tidy=tidied,
)
FAMILY = Family(
    name="marian-npz",
    title="a Marian C++ Transformer",
    anchor="encoder_l1_self_Wq",
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=plain_pass("marian-npz", TENSOR_NAMES),
    ignored=(CONFIG,),
    vocabulary=vocabulary,
)
