"""fairseq's `transformer` models, the newest and those of before 2019."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Source
from mlx_transformer.convert.mapping import Table, part, stack, under
from mlx_transformer.convert.originals import plain_pass
from mlx_transformer.convert.tensor_names import TensorNames
from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer.languages import pair_of

# Until 2019 q, k and v were packed into one matrix and the norms had numbers.
ENCODER_LAYER: Table = {
    "self_attention.qkv.*": [
        stack("self_attn.q_proj.*", "self_attn.k_proj.*", "self_attn.v_proj.*"),
        "self_attn.in_proj_*",
    ],
    "self_attention.out.*": "self_attn.out_proj.*",
    "self_attention_norm.*": ["self_attn_layer_norm.*", "layer_norms.0.*"],
    "feed_forward.w_1.*": "fc1.*",
    "feed_forward.w_2.*": "fc2.*",
    "feed_forward_norm.*": ["final_layer_norm.*", "layer_norms.1.*"],
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.q.*": ["encoder_attn.q_proj.*", part("encoder_attn.in_proj_*", 0, 1)],
    "cross_attention.kv.*": [
        stack("encoder_attn.k_proj.*", "encoder_attn.v_proj.*"),
        part("encoder_attn.in_proj_*", 1, 3),
    ],
    "cross_attention.out.*": "encoder_attn.out_proj.*",
    "cross_attention_norm.*": ["encoder_attn_layer_norm.*", "layer_norms.1.*"],
    "feed_forward_norm.*": ["final_layer_norm.*", "layer_norms.2.*"],
}
LAYERS = {"encoder": "encoder.layers.{i}.", "decoder": "decoder.layers.{i}."}
TABLE: Table = {
    "source_words.weight": "encoder.embed_tokens.weight",
    "target_words.weight": "decoder.embed_tokens.weight",
    "output.weight": ["decoder.output_projection.weight", "decoder.embed_out"],
    "source_embedding.positions": "encoder.embed_positions.weight",
    "target_embedding.positions": "decoder.embed_positions.weight",
    "source_embedding.norm.*": "encoder.layernorm_embedding.*",
    "target_embedding.norm.*": "decoder.layernorm_embedding.*",
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    "encoder.norm.*": "encoder.layer_norm.*",
    "decoder.norm.*": "decoder.layer_norm.*",
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "swish",
}
# Sinusoids as in tensor2tensor, counted on from the padding id; the decoder starts with </s>.
POSITIONS = {
    "position_layout": "halves",
    "position_divisor_minus_one": True,
    "position_offset": 2,
    "padding_has_position": False,
}
IGNORED = (r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))",)
SIDES = ("source", "target")
IDS = {"pad_id": 1, "start_id": 2, "eos_id": 2}


def settings(source: Source) -> dict[str, Any]:
    args = arguments(source)
    if not args:  # a bare state dict
        return POSITIONS | IDS
    if args.flag("no_token_positional_embeddings", default=False):
        raise InputError("models without position embeddings are not supported")
    activation = args.text("activation_fn", default="relu")
    if activation not in ACTIVATIONS:
        raise InputError(f"the activation {activation!r} is not supported")
    pre_norm = args.flag("encoder_normalize_before", "decoder_normalize_before", default=False)
    lengths = [args.integer(f"max_{s}_positions", default=1024) for s in ("source", "target")]
    return {
        **POSITIONS,
        **IDS,
        "h": args.integer("encoder_attention_heads", "decoder_attention_heads"),
        "norm": "pre" if pre_norm else "post",
        "scale_embedding": not args.flag("no_scale_embedding", default=False),
        "activation": ACTIVATIONS[activation],
        "dropout": args.number("dropout", default=0.1),
        "max_length": max(lengths),
    }


def arguments(source: Source) -> Fields:
    """What the model was made with; the newest files group it, as in `encoder: {layers: 6}`."""
    metadata = Fields(source.checkpoint.metadata)
    args = metadata.inner("cfg").inner("model") or metadata.inner("args")
    grouped = {f"{s}_{k}": v for s in ("encoder", "decoder") for k, v in args.inner(s).items()}
    return Fields({**args, **grouped})


# Where BPE codes lie, the first that exists.
CODES = ("bpecodes", "bpe.codes", "bpe.code", "codes", "code")
LISTS = ("dict.txt", "sentencepiece.bpe.model")


def vocabulary(source: Source) -> Mapping[str, Path | bytes]:
    """`dict.txt`, or `dict.LANGUAGE.txt` for each side, and what cuts words into pieces."""
    folder = vocabulary_folder(source)
    files: dict[str, Path | bytes] = {name: folder / name for name in LISTS}
    settings: dict[str, Any] = {}
    told = [source.options.source_vocab, source.options.target_vocab]
    if all(path is not None and path.suffix == ".txt" for path in told):
        files |= {f"dict.{s}.txt": p for s, p in zip(SIDES, told, strict=True) if p is not None}
    elif (languages := languages_of(source, folder)) is not None:
        for side, language in zip(SIDES, languages, strict=True):
            files[f"dict.{side}.txt"] = folder / f"dict.{language}.txt"
        if languages != SIDES:
            settings = dict(zip(("source_lang", "target_lang"), languages, strict=True))
    codes = next((folder / name for name in CODES if (folder / name).is_file()), None)
    if codes is not None:
        files["bpecodes"] = codes
        settings["moses"] = _cut_by_moses(source, files)
    if settings:
        files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files


def vocabulary_folder(source: Source) -> Path:
    """Where the dictionaries lie: those that the user names, beside the checkpoint, or in a folder
    like `data` near by, where their sizes show that they belong to it."""
    if source.options.source_vocab is not None:
        return source.options.source_vocab.parent
    folder = source.checkpoint.directory.resolve()
    if any(folder.glob("dict.*")):
        return folder
    # Unlike iterdir, glob passes over folders that may not be read.
    near = [folder.parent, *folder.parent.glob("*"), *folder.glob("*")]
    sizes = sorted(_words(source))
    fitting = [path for path in near if sorted(map(_size, path.glob("dict.*.txt"))) == sizes]
    return fitting[0] if len(fitting) == 1 else folder


def _cut_by_moses(source: Source, files: Mapping[str, Path | bytes]) -> bool:
    """As the checkpoint says, or as the dictionaries show: Moses writes quotes as `&quot;`."""
    said = Fields(source.checkpoint.metadata).inner("cfg").inner("tokenizer").get("_name")
    if said is not None:
        return said == "moses"
    words: set[bytes] = set()
    for name in ("dict.txt", *(f"dict.{side}.txt" for side in SIDES)):
        path = files.get(name)
        if isinstance(path, Path) and path.is_file():
            words |= {line.split(b" ")[0] for line in path.read_bytes().splitlines()}
    escaped = any(b"&quot;" in word or b"&apos;" in word for word in words)
    return escaped or not words & {b'"', b"'", b'"@@', b"'@@"}


def languages_of(source: Source, folder: Path) -> tuple[str, str] | None:
    """As the checkpoint names them, or as the dictionaries in `folder` do; None: one for both."""
    metadata = Fields(source.checkpoint.metadata)
    task = metadata.inner("cfg").inner("task") or metadata.inner("args")
    named = tuple(task.text(f"{side}_lang", default="") for side in SIDES)
    if all(named):
        return named[0], named[1]
    lists = {p.name.split(".")[1]: p for p in sorted(folder.glob("dict.*.txt"))}
    if len(lists) != 2:
        return None
    first, second = lists
    return _in_order(source, (first, second), [_size(path) for path in lists.values()])


def _in_order(source: Source, languages: tuple[str, str], sizes: list[int]) -> tuple[str, str]:
    """Which of two dictionaries is the source's: a name says it, or their sizes do."""
    path = source.checkpoint.path.resolve()
    pairs = [pair_of(part.name) for part in (path, *path.parents)]
    pair = next((pair for pair in pairs if pair and {*pair} == {*languages}), None)
    if pair is not None:
        return pair
    words = _words(source)
    if sizes == words and sizes != words[::-1]:
        return languages
    if sizes == words[::-1] and sizes != words:
        return languages[1], languages[0]
    if languages == SIDES:
        return languages
    raise InputError(
        f"dict.{languages[0]}.txt and dict.{languages[1]}.txt lie beside the checkpoint, and "
        "nothing says which language it translates from: name the folder like "
        f"{languages[0]}-{languages[1]}"
    )


def _words(source: Source) -> list[int]:
    """How many there are on each side; a matrix for both may be stored once."""
    keys = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
    return [source.rows(keys[1]), source.rows(*keys)]


def _size(path: Path) -> int:
    """Words of a dictionary, with the four that are in none"""
    with path.open("rb") as file:
        return 4 + sum(1 for line in file if line.strip())


def unpacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Checkpoints of before 2019 under the newer names: q, k and v apart."""
    tidied: dict[str, np.ndarray] = {}
    for key, values in tensors.items():
        attention, packed, kind = key.partition(".in_proj_")
        if packed:
            for part_name, rows in zip("qkv", np.split(values, 3), strict=True):
                tidied[f"{attention}.{part_name}_proj.{kind}"] = rows
        else:
            tidied["decoder.output_projection.weight" if key == "decoder.embed_out" else key] = (
                values
            )
    return tidied


TENSOR_NAMES = TensorNames(
    words=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    positions=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
    embedding_norms=("encoder.layernorm_embedding", "decoder.layernorm_embedding"),
    layers=("encoder.layers.{i}.", "decoder.layers.{i}."),
    attentions=("self_attn.", "encoder_attn."),
    projections=("q_proj", "k_proj", "v_proj", "out_proj"),
    feed_forward=("fc1", "fc2"),
    norms=(
        ["self_attn_layer_norm|layer_norms.0", "final_layer_norm|layer_norms.1"],
        [
            "self_attn_layer_norm|layer_norms.0",
            "encoder_attn_layer_norm|layer_norms.1",
            "final_layer_norm|layer_norms.2",
        ],
    ),
    final_norms=("encoder.layer_norm", "decoder.layer_norm"),
    output="decoder.output_projection",
    first_position=2,
    tidy=unpacked,
)
FAMILY = Family(
    name="fairseq",
    title="a fairseq Transformer",
    anchor="encoder.layers.0.fc1.weight",
    matches=lambda source: not source.checkpoint.fields("config.json"),  # that is transformers'
    layers=LAYERS,
    table=TABLE,
    settings=settings,
    original=plain_pass("fairseq", TENSOR_NAMES),
    ignored=IGNORED,
    vocabulary=vocabulary,
)
