"""`torch.nn.Transformer` with whatever embeddings, position table and head a user put around it.

Those are found by their shapes and, where shapes do not tell, by words in their names. Heads, ids
and the order of the norms leave no trace in the weights: they are options.
"""

import re
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlx_transformer.config import ModelConfig
from mlx_transformer.convert.checkpoint import Fields
from mlx_transformer.convert.family import Family, Original, Source
from mlx_transformer.convert.mapping import ZEROS, Table, choose, expand, part, squeezed, under
from mlx_transformer.convert.originals import as_torch, float_tensors, need_package, on_numpy
from mlx_transformer.convert.positions import recognise_sinusoids
from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown
from mlx_transformer.model import sinusoids
from mlx_transformer.storage import CONFIG_FILE
from mlx_transformer.tokenizer.listed import read_list, special_ids

# Our attention can do without biases; other biases are zeros if nn.Transformer has none.
ENCODER_LAYER: Table = {
    "self_attention.qkv.*": "self_attn.in_proj_*",
    "self_attention.out.*": "self_attn.out_proj.*",
    "self_attention_norm.*": ["norm1.*", ZEROS],
    "feed_forward.w_1.*": ["linear1.*", ZEROS],
    "feed_forward.w_2.*": ["linear2.*", ZEROS],
    "feed_forward_norm.*": ["norm2.*", ZEROS],
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.q.*": part("multihead_attn.in_proj_*", 0, 1),
    "cross_attention.kv.*": part("multihead_attn.in_proj_*", 1, 3),
    "cross_attention.out.*": "multihead_attn.out_proj.*",
    "cross_attention_norm.*": ["norm2.*", ZEROS],
    "feed_forward_norm.*": ["norm3.*", ZEROS],
}
LAYERS = {"encoder": "encoder.layers.{i}.", "decoder": "decoder.layers.{i}."}
TABLE: Table = {
    **under("encoder.layers.{i}.", LAYERS["encoder"], ENCODER_LAYER),
    **under("decoder.layers.{i}.", LAYERS["decoder"], DECODER_LAYER),
    "encoder.norm.*": ["encoder.norm.*", ZEROS],
    "decoder.norm.*": ["decoder.norm.*", ZEROS],
    # Of our own export: norms on the embeddings, which nn.Transformer has not.
    **{f"{side}_embedding.norm.*": f"{side}_norm.*" for side in ("source", "target")},
}
# What is saved beside weights and means nothing to them: masks, and the weights of a loss.
IGNORED = (r"(.*[._])?mask", r"(.*\.)?(criterion|loss|loss_fn)\..*")
POSITION = re.compile(r"pos|(^|\.)pe($|\.)", re.IGNORECASE)
EMBEDDING = re.compile(r"emb|tok|word|lut|shared", re.IGNORECASE)
SOURCE = re.compile(r"src|source|enc|input", re.IGNORECASE)
TARGET = re.compile(r"tgt|trg|target|dec|output", re.IGNORECASE)


def stacks(keys: Collection[str]) -> dict[str, str]:
    """Wherever a user put them: a stack whose layers look at two texts is the decoder."""
    starts = {m[1] for key in keys if (m := re.fullmatch(r"(.*\.)0\.linear1\.weight", key))}
    decoders = {start for start in starts if f"{start}0.multihead_attn.in_proj_weight" in keys}
    encoders = starts - decoders
    if not len(encoders) == len(decoders) == 1:
        return {}
    moved: dict[str, str] = {}
    for start, stack in ((encoders.pop(), "encoder"), (decoders.pop(), "decoder")):
        moved[start] = f"{stack}.layers."
        if start.endswith(".layers."):  # the norm at the end of nn.TransformerEncoder
            moved[start.removesuffix("layers.") + "norm."] = f"{stack}.norm."
    return moved


def found(source: Source) -> Table:
    """The lines for the user's own modules: what options name, then what is left and fits."""
    options = source.options
    named = (
        options.source_embedding,
        options.target_embedding,
        options.output,
        options.positions,
    )
    taken = {source.key_of(name) for name in named if name is not None}
    left = [key for key in _matrices(source) if key not in taken]
    positions = [key for key in left if _is_position_table(source, key)]
    left = [key for key in left if key not in positions]
    # A projection has a bias beside it, or at least no name like an embedding's.
    plain = [key for key in left if not source.has(_bias_of(key))]
    words = [key for key in plain if EMBEDDING.search(key)] or plain
    heads = [key for key in left if key not in words]

    def pick(what: str, keys: list[str], side: re.Pattern[str] | None) -> str:
        """The key that is `what`, an option; "" if there is none."""
        told = getattr(options, what)
        if told is not None:
            return source.key_of(told)
        fitting = [key for key in keys if side and side.search(key)] if len(keys) > 1 else keys
        if len(fitting) == 1 or not keys:
            return fitting[0] if keys else ""
        listed = ", ".join(shown(source.original[key]) for key in keys)
        raise InputError(f"which of {listed} is the {what.replace('_', ' ')}?", options=[what])

    output = pick("output", heads, None)
    lines = {
        "source_words.weight": pick("source_embedding", words, SOURCE),
        "target_words.weight": pick("target_embedding", words, TARGET),
        "source_embedding.positions": pick("positions", positions, SOURCE),
        "target_embedding.positions": pick("positions", positions, TARGET),
        "output.weight": output,
        "output_bias": _bias_of(output),
    }
    return {name: key for name, key in lines.items() if key}


def _matrices(source: Source) -> list[str]:
    """Tensors (n, d_model) that are not part of nn.Transformer."""
    layers = {stack: source.count_layers(start) for stack, start in LAYERS.items()}
    rules = choose(expand(TABLE, layers), source.tensors).values()
    used = {key for rule in rules for key in rule.keys}
    d_model = source.tensors[ANCHOR].shape[-1]
    shapes = {key: squeezed(tensor.shape) for key, tensor in source.tensors.items()}
    return [k for k, s in shapes.items() if k not in used and len(s) == 2 and s[1] == d_model]


def _is_position_table(source: Source, key: str) -> bool:
    """A sinusoidal table is known by its values, a learned one only by its name."""
    return bool(POSITION.search(key)) or recognise_sinusoids(source.tensors[key]) is not None


def _bias_of(weight: str) -> str:
    """The name of the bias beside a weight; "" beside a tensor that is no module's weight."""
    return weight.removesuffix("weight") + "bias" if weight.endswith("weight") else ""


# What people call settings in their own programs, and Lightning keeps under hyper_parameters.
THEIR_INTEGERS = {
    "h": ("nhead", "nheads", "num_heads", "n_heads", "n_head", "heads", "h"),
    "pad_id": ("pad_id", "pad_idx", "pad_token_id", "padding_idx"),
    "start_id": ("start_id", "bos_id", "bos_idx", "sos_id", "sos_idx", "bos_token_id"),
    "eos_id": ("eos_id", "eos_idx", "eos_token_id"),
}
LISTS = ("vocab.json", "target_vocab.json")
OUR_SETTINGS = (
    *("h", "norm", "norm_eps", "activation", "scale_embedding", "pad_id", "start_id", "eos_id"),
    *("max_length", "logit_scale", "padding_has_position"),
)


def settings(source: Source) -> dict[str, Any]:
    """What lies beside the weights: the config of our own export, or a vocabulary and settings."""
    path = source.checkpoint.directory / CONFIG_FILE
    if path.is_file() and not source.checkpoint.fields(CONFIG_FILE):
        try:
            ours = ModelConfig.load(path)
        except InputError:  # somebody else's
            return _their_settings(source)
        return {name: getattr(ours, name) for name in OUR_SETTINGS}
    return _their_settings(source)


def _their_settings(source: Source) -> dict[str, Any]:
    return _listed_ids(source) | _hyper_parameters(source)


def _listed_ids(source: Source) -> dict[str, int]:
    """Special ids, as the vocabularies number them: padding of sources, start and end of targets"""
    lists = [special_ids(read_list(path)) for path in vocabularies(source)]
    if not lists:
        return {}
    named = {"pad_id": lists[0].get("pad"), "start_id": lists[-1].get("start")}
    named["eos_id"] = lists[-1].get("end")
    return {name: i for name, i in named.items() if i is not None}


def _hyper_parameters(source: Source) -> dict[str, Any]:
    said = source.checkpoint.fields("hyper_parameters", "hparams", "config", "args")
    for group in list(said):  # as in hyper_parameters["config"]["nhead"]
        said = Fields({**said.inner(group), **said})
    said = Fields({name.lower(): value for name, value in said.items()})
    said = Fields({**said, **source.checkpoint.fields("module_settings")})
    found: dict[str, Any] = {
        ours: said.integer(*theirs)
        for ours, theirs in THEIR_INTEGERS.items()
        if any(isinstance(said.get(name), int) for name in theirs)
    }
    if isinstance(said.get("norm_first"), bool):
        found["norm"] = "pre" if said["norm_first"] else "post"
    if said.get("activation") in ("relu", "gelu"):
        found["activation"] = said["activation"]
    return found


def vocabularies(source: Source) -> list[Path]:
    """Lists of characters or words: what the user names, or vocab.json beside the weights"""
    told = [source.options.source_vocab, source.options.target_vocab]
    paths = [path for path in told if path is not None]
    paths = paths or [source.checkpoint.directory / "vocab.json"]
    return [path for path in paths if path.suffix == ".json" and path.is_file()]


def vocabulary(source: Source) -> dict[str, Path | bytes]:
    """Those lists, of no class of transformers in particular"""
    paths = vocabularies(source)
    if not paths:
        return {}
    files: dict[str, Path | bytes] = dict(zip(LISTS, paths, strict=False))
    return {**files, "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizer"}'}


def generation(source: Source) -> dict[str, Any]:
    """Such programs read a line as it is: a word, a formula, a text without an end."""
    return {"whole_lines": True} if vocabularies(source) else {}


# The user's own modules around torch.nn.Transformer: our names, and those of `torch_example`.
OWN_MODULES = {
    "source_words.weight": "source_embedding.weight",
    "target_words.weight": "target_embedding.weight",
    "output.weight": "output.weight",
    "output_bias": "output.bias",
    "source_embedding.positions": "source_positions",
    "target_embedding.positions": "target_positions",
}


def original(source: Source, config: ModelConfig) -> Original:
    """torch.nn.Transformer itself, between the checkpoint's own embeddings and head."""
    need_package("torch")
    import torch

    from mlx_transformer.convert.torch_example import TorchTransformer

    model = TorchTransformer(SimpleNamespace(**config.to_dict())).eval()
    state = {name: torch.zeros_like(values) for name, values in model.state_dict().items()}
    needed = {name for name in state if not name.endswith("bias")}  # built with bias=False
    tensors = as_torch(float_tensors(source))
    starts = tuple(f"{stack}.{part}." for stack in LAYERS for part in ("layers", "norm"))
    given = {f"transformer.{k}": v for k, v in tensors.items() if k.startswith(starts)}
    given |= {k: v for k, v in tensors.items() if k.startswith(("source_norm.", "target_norm."))}
    keys = found(source).items()
    own = {ours: tensors[str(key)] for ours, key in keys if key in tensors}
    own.setdefault("target_words.weight", own["source_words.weight"])
    own.setdefault("output.weight", own["target_words.weight"])
    if "source_embedding.positions" not in own:
        table = torch.from_numpy(sinusoids(config, config.max_length))
        own |= {f"{side}_embedding.positions": table for side in ("source", "target")}
    for ours, theirs in OWN_MODULES.items():
        if ours in own:
            given[theirs] = own[ours].reshape(state[theirs].shape)
    assert needed <= given.keys() <= state.keys()
    model.load_state_dict(state | given)
    return Original(
        "`torch.nn.Transformer`, between the checkpoint's embeddings and head, with its tensors "
        "under their own names",
        on_numpy(model),
    )


ANCHOR = "encoder.layers.0.linear1.weight"
FAMILY = Family(
    name="torch",
    title="a torch.nn.Transformer",
    anchor=ANCHOR,
    layers=LAYERS,
    table=TABLE,
    stacks=stacks,
    ignored=IGNORED,
    found=found,
    settings=settings,
    original=original,
    vocabulary=vocabulary,
    generation=generation,
)
