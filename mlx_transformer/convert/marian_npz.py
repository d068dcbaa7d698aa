"""Models of the Marian C++ toolkit, as they are (`.npz` and `.bin`), such as all of Firefox's."""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import (
    NEVER,
    ZEROS,
    Line,
    Table,
    stack,
    transposed,
    under,
    with_extra_rows,
)
from mlx_transformer.convert.marian_shortlist import read_shortlist
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import read_json
from mlx_transformer.storage import SHORTLIST_FILE

CONFIG = "special:model.yml"
MAX_CONFIG_BYTES = 1 << 16  # of what lies beside
UNKNOWN = 1  # in every vocabulary; Marian never writes it


def linear(ours: str, *theirs: str) -> Table:
    """`_Wq` and `_bq` where others have `q.weight` and `q.bias`; matrices are (in, out)."""
    return {
        f"{ours}.weight": transposed(*(key.replace("?", "W") for key in theirs)),
        f"{ours}.bias": stack(*(key.replace("?", "b") for key in theirs)),
    }


def norm(ours: str, *theirs: str) -> Table:
    """`_pre` is added to the names of norms that come before what they are named after."""
    return {
        f"{ours}.{kind}": [f"{key}_ln_{name}{end}" for key in theirs for end in ("", "_pre")]
        for kind, name in (("weight", "scale"), ("bias", "bias"))
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
    # An SSRU in the place of self-attention.
    "self_attention.input.weight": transposed("rnn_W"),
    "self_attention.forget.weight": transposed("rnn_Wf"),
    "self_attention.forget.bias": "rnn_bf",
    **norm("self_attention_norm", "self_Wo", "rnn_ffn"),
    **linear("cross_attention.q", "context_?q"),
    **linear("cross_attention.kv", "context_?k", "context_?v"),
    **linear("cross_attention.out", "context_?o"),
    **norm("cross_attention_norm", "context_Wo"),
}
LAYERS = {"encoder": "encoder_l{n}_", "decoder": "decoder_l{n}_"}
TABLE: Table = {
    "source_embedding.positions": "Wpos",
    "target_embedding.positions": "Wpos",
    **norm("source_embedding.norm", "encoder_emb"),
    **norm("target_embedding.norm", "decoder_emb"),
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    **norm("encoder.norm", "encoder_top"),
    **norm("decoder.norm", "decoder_top"),
}
ACTIVATIONS = {"swish": "swish", "relu": "relu", "gelu": "gelu_sigmoid"}
TIED = "transformer-tied-layers"
SOURCE_WORDS = ("encoder_Wemb", "Wemb")
TARGET_WORDS = ("decoder_Wemb", "Wemb")


def prepared(source: Source) -> Source:
    """Tied layers of the decoder, which the file holds once, under every number that uses them"""
    text = config_text(source) if source.has(CONFIG) else ""
    numbers = [int(item) for item in listed(text, TIED) if re.fullmatch(r"[0-9]{1,3}", item)]
    if not numbers:
        return source
    layer = re.compile(r"decoder_l(\d+)_(.+)")
    split = {key: match for key in source.tensors if (match := layer.fullmatch(key))}
    names = {key: key for key in source.tensors if key not in split}
    for n, number in enumerate(numbers, 1):
        names |= {f"decoder_l{n}_{m[2]}": k for k, m in split.items() if int(m[1]) == number}
    return replace(
        source,
        tensors={name: source.tensors[key] for name, key in names.items()},
        original={name: source.original[key] for name, key in names.items()},
    )


def found(source: Source) -> dict[str, Line]:
    """Marian masks by length and has no word for padding: both sides get one after all words."""
    size = padding_id(source) + 1
    more = [size - source.rows(*keys) for keys in (SOURCE_WORDS, TARGET_WORDS)]
    return {
        "source_words.weight": [with_extra_rows(key, 0, more[0]) for key in SOURCE_WORDS],
        "target_words.weight": [with_extra_rows(key, 0, more[1]) for key in TARGET_WORDS],
        "output.weight": [
            with_extra_rows("decoder_ff_logit_out_Wt", 0, more[1]),
            replace(transposed("decoder_ff_logit_out_W"), extra=0, extra_rows=more[1]),
        ],
        "output_bias": [
            with_extra_rows("decoder_ff_logit_out_b", NEVER, more[1]),
            replace(ZEROS, extra=NEVER, extra_rows=more[1]),
        ],
    }


def padding_id(source: Source) -> int:
    return max(source.rows(*SOURCE_WORDS), source.rows(*TARGET_WORDS))


def settings(source: Source) -> dict[str, Any]:
    config = config_of(source)
    _check_supported(config)
    for side, name in (("encoder", "enc-depth"), ("decoder", "dec-depth")):
        depth = source.count_layers(LAYERS[side])
        if config.get(name, str(depth)) != str(depth):
            raise InputError(f"Marian's {name} is {config[name]}, but the file has {depth} layers")
    return {
        "h": int(config.get("transformer-heads", "8")),
        "norm": "pre" if "n" in config.get("transformer-preprocess", "") else "post",
        "norm_eps": 1e-6,
        "activation": ACTIVATIONS[config.get("transformer-ffn-activation", "swish")],
        "decoder_cell": "ssru" if source.has("decoder_l1_rnn_W") else "self-attention",
        "position_layout": "halves",
        "position_divisor_minus_one": True,
        # Where positions are learned, word vectors are not scaled.
        "scale_embedding": not source.has("Wpos"),
        "pad_id": padding_id(source),
        "start_id": None,  # a zero vector
        "eos_id": 0,
    }


def _check_supported(config: Mapping[str, str]) -> None:
    rnn = config.get("transformer-decoder-autoreg") == "rnn"
    for name, allowed in {
        "type": ("transformer",),
        "transformer-decoder-autoreg": ("self-attention", "rnn"),
        "dec-cell": ("ssru",) if rnn else (config.get("dec-cell", ""),),
        "layer-normalization": ("false",),
        "right-left": ("false",),
        "ulr": ("false",),
        "lemma-dim-emb": ("0",),
        "transformer-no-projection": ("false",),
        "transformer-preprocess": ("", "d", "n", "nd"),
        "transformer-postprocess": ("dan", "an", "da", "a"),
        "transformer-postprocess-emb": ("", "d", "n", "nd"),
        "transformer-postprocess-top": ("", "d", "n", "nd", "dn"),
        "transformer-ffn-activation": tuple(ACTIVATIONS),
        "transformer-ffn-depth": ("2",),
    }.items():
        value = config.get(name, allowed[0])
        if value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise InputError(f"Marian's {name} {value!r} is not supported, only {listed}")
    if not config.get("transformer-heads", "8").isdecimal():
        raise InputError("Marian's transformer-heads is not a number")


def config_of(source: Source) -> dict[str, str]:
    if not source.has(CONFIG):
        raise InputError(f"the file has no {CONFIG}, so it does not say what model it is")
    return plain_lines(config_text(source))


def config_text(source: Source) -> str:
    """The YAML that Marian keeps in the file"""
    text = source.tensors[CONFIG].numpy().tobytes().rstrip(b"\0")
    return text.decode("utf-8", "replace")


def plain_lines(text: str) -> dict[str, str]:
    """The plain `name: value` lines of YAML"""
    parts = (line.partition(":") for line in text.splitlines())
    known = ((name, value) for name, _, value in parts if re.fullmatch(r"[\w-]+", name))
    return {name: value.strip().strip("\"'") for name, value in known}


def generation(source: Source) -> dict[str, Any]:
    """How its decoder's config says that it is run; students with an SSRU are read greedily."""
    texts = configs_beside(source.checkpoint.directory)
    said = next((s for s in map(plain_lines, texts) if "beam-size" in s), {})
    beam = said.get("beam-size", "1" if source.has("decoder_l1_rnn_W") else "")
    options: dict[str, Any] = {"banned": [UNKNOWN], "length_penalty": "plain"}
    if beam.isdecimal() and int(beam):
        options["beam"] = int(beam)
    if re.fullmatch(r"\d+(\.\d+)?", alpha := said.get("normalize", "")):
        options["alpha"] = float(alpha)
    return options


def vocabulary(source: Source) -> Mapping[str, Path | bytes]:
    """SentencePiece vocabularies, or SentencePiece models and a list of their pieces' ids."""
    folder = source.checkpoint.directory
    sides = [sorted(folder.glob(f"{side}vocab*.spm")) for side in ("src", "trg")]
    shared, lists = sorted(folder.glob("vocab*.spm")), sorted(folder.glob("*vocab.yml"))
    files: dict[str, Path | bytes] = {}
    named = named_vocabularies(folder)
    if named and named[0] != named[-1]:
        files |= {"source.model": named[0], "target.model": named[-1]}
    elif named or len(shared) == 1:
        files["tokenizer.model"] = (named or shared)[0]
    elif all(len(side) == 1 for side in sides):
        files |= {"source.model": sides[0][0], "target.model": sides[1][0]}
    else:
        files |= {name: folder / name for name in ("source.spm", "target.spm")}
        if len(lists) == 1:
            ids = {**read_vocabulary(lists[0]), "<pad>": padding_id(source)}
            files["vocab.json"] = json.dumps(ids, ensure_ascii=False).encode()
    if shortlist := shortlist_of(source, folder):
        files[SHORTLIST_FILE] = shortlist
    if languages := languages_of(folder):
        files["tokenizer_config.json"] = json.dumps(languages).encode()
    return files


def named_vocabularies(folder: Path) -> list[Path]:
    """The SentencePiece vocabularies that a decoder's config beside the model names, if it does"""
    for text in configs_beside(folder):
        files = [folder / Path(item).name for item in listed(text, "vocabs")]
        if files and all(file.suffix == ".spm" and file.is_file() for file in files):
            return files
    return []


def listed(text: str, name: str) -> list[str]:
    """The items of a list in YAML, a line each or in brackets"""
    _, _, behind = f"\n{text}".partition(f"\n{name}:")
    first, *lines = map(str.strip, behind.split("\n"))
    items = [*takewhile(lambda line: line.startswith("-"), lines)]
    named = [item.strip("- \"'") for item in items or first.strip("[]").split(",")]
    return [item for item in named if item]


def configs_beside(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.yml"))
    return [file.read_bytes()[:MAX_CONFIG_BYTES].decode("utf-8", "replace") for file in files]


def shortlist_of(source: Source, folder: Path) -> bytes | None:
    """A model without its shortlist is a model all the same."""
    found, words = sorted(folder.glob("lex*.bin")), padding_id(source) + 1
    if len(found) != 1:
        return None
    try:
        return read_shortlist(found[0], words, words)
    except InputError as error:
        warnings.warn(f"{error}; it is left out", stacklevel=2)
        return None


def languages_of(folder: Path) -> dict[str, str]:
    """As Firefox says it: in a file, or in names such as `vocab.enpt.spm`."""
    described = folder / "metadata.json"
    said = read_json(described) if described.is_file() else {}
    codes = [said.get(f"{side}Language") for side in ("source", "target")]
    named = [re.search(r"\.([a-z]{2})-?([a-z]{2})\.", path.name) for path in folder.glob("*.*.*")]
    found = {(match[1], match[2]) for match in named if match}
    if not all(isinstance(code, str) for code in codes) and len(found) == 1:
        codes = [*found.pop()]
    sides = zip(("source_lang", "target_lang"), codes, strict=True)
    return {side: code for side, code in sides if isinstance(code, str)}


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
    (r"(.+_rnn)_W", r"\1_input.weight"),
    (r"(.+_rnn)_Wf", r"\1_forget.weight"),
    (r"(.+_rnn)_bf", r"\1_forget.bias"),
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
    recurrence=("rnn_input", "rnn_forget"),
    feed_forward=("ffn_1", "ffn_2"),
    norms=(
        ["self_Wo_ln", "ffn_ffn_ln"],
        ["self_Wo_ln|rnn_ffn_ln", "context_Wo_ln", "ffn_ffn_ln"],
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
    prepared=prepared,
    found=found,
    ignored=(CONFIG, r".*_QuantMultA"),  # how a processor rounds what it multiplies
    vocabulary=vocabulary,
    generation=generation,
)
