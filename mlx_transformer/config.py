"""One description of one model: every architecture choice, validated, to and from JSON.

The defaults are the paper's base model. The other values exist because published checkpoints use
them; each is described where it differs from the paper.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_type_hints

from mlx_transformer.errors import InputError, naming
from mlx_transformer.inputs.checks import at_least, below_one, must_be, nearest, typed
from mlx_transformer.inputs.printable import shown
from mlx_transformer.inputs.untrusted import read_json

# Of config.json and of checkpoints; a file that names none is of version 1. Raise it only if an
# older program would misread new files, and go on reading the old ones.
FORMAT_VERSION = 1

Norm = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Positions = Literal["sinusoidal", "learned", "relative"]
PositionLayout = Literal["interleaved", "halves"]
DecoderCell = Literal["self-attention", "ssru"]
WordHeadKind = Literal["plain", "transform", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "swish"]

# No model is larger. MLX counts in 32 bits, and its own errors would not help a user.
MOST = 1 << 24
MOST_OF = {
    "encoder_layers": 1 << 10,
    "decoder_layers": 1 << 10,
    "d_model": 1 << 20,
    "d_ff": 1 << 20,
    "h": 1 << 10,
    "d_k": 1 << 16,
    "d_v": 1 << 16,
    "position_offset": 1 << 10,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer's hyper-parameters; paper symbols where the paper has one."""

    # Vocabularies. None: the target uses the source's vocabulary.
    vocab_size: int = 37_000
    target_vocab_size: int | None = None

    # Table 3. d_k and d_v are numbers of their own (row B); None means d_model / h. A stack of no
    # layers is not there: an encoder alone is a BERT, a decoder alone a GPT.
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    h: int = 8
    d_k: int | None = None
    d_v: int | None = None

    # Regularisation, section 5.4.
    dropout: float = 0.1
    label_smoothing: float = 0.1

    # Normalisation. Post-norm is the paper's; pre-norm stacks usually end in one more norm.
    norm: Norm = "post"
    encoder_final_norm: bool = False
    decoder_final_norm: bool = False
    embedding_norm: bool = False
    norm_kind: NormKind = "layer"  # rms: no mean, no bias
    norm_eps: float = 1e-5

    # Positions, section 3.5. `halves` puts all sines before all cosines; the divisor of the
    # exponent is d_model/2 in the paper and d_model/2 - 1 in tensor2tensor and fairseq.
    positions: Positions = "sinusoidal"
    position_layout: PositionLayout = "interleaved"
    position_divisor_minus_one: bool = False
    position_offset: int = 0
    # False, as in fairseq: no position is added to padding, should a decoder write it.
    padding_has_position: bool = True
    max_length: int = 1024
    # `relative`: no table, but a bias on attention scores by the bucket that a distance falls in,
    # learned for each stack or for each layer.
    relative_buckets: int = 32
    relative_distance: int = 128  # from which on all distances are alike
    relative_per_layer: bool = False

    # Embeddings and softmax, section 3.4: one matrix for source, target and output.
    shared_embeddings: bool = True
    tied_output: bool = True
    scale_embedding: bool = True
    output_bias: bool = False
    logit_scale: float = 1.0
    # Of an encoder alone: `transform` puts BERT's dense layer and norm before the word matrix,
    # `none` is a model that only makes vectors.
    word_head: WordHeadKind = "plain"

    # Attention, section 3.2, and feed-forward networks, section 3.3. A gate is a second W_1 whose
    # product multiplies the activation of the first.
    attention_bias: bool = True
    decoder_cell: DecoderCell = "self-attention"  # ssru: a recurrent unit in its place
    scale_attention: bool = True  # by 1 / sqrt(d_k)
    activation: Activation = "relu"
    gated_feed_forward: bool = False
    feed_forward_bias: bool = True

    # Special ids. start_id None: the decoder starts from a zero vector instead of a token.
    pad_id: int = 0
    start_id: int | None = 1
    eos_id: int = 2

    # Bits of each stored weight (MLX quantisation); None: plain floating point.
    quantization: int | None = None

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(ModelConfig).items():
            object.__setattr__(self, name, typed(name, getattr(self, name), hint))
        at_least(0, self, "encoder_layers", "decoder_layers")
        at_least(1, self, "vocab_size", "d_model", "d_ff", "h")
        self._check_limits()
        must_be("even", lambda d: d % 2 == 0, self, "d_model")
        self._resolve_defaults()
        at_least(1, self, "d_k", "d_v", "max_length")
        at_least(0, self, "position_offset")
        below_one(self, "dropout", "label_smoothing")
        must_be("in (0, 1)", lambda eps: 0 < eps < 1, self, "norm_eps")
        must_be(
            "a finite number other than 0", lambda x: math.isfinite(x) and x, self, "logit_scale"
        )
        must_be("4 or 8 bits", lambda bits: bits in (4, 8), self, "quantization")
        must_be("even and at least 4", lambda n: n % 2 == 0 and n >= 4, self, "relative_buckets")
        must_be(
            "more than half of relative_buckets",
            lambda distance: distance > self.relative_buckets // 2,
            self,
            "relative_distance",
        )
        self._check_vocabularies()
        self._check_halves()

    def _resolve_defaults(self) -> None:
        """Give a number to each setting that follows from others where it is None."""
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None:
                if self.d_model % self.h:
                    raise InputError(
                        f"d_model {self.d_model} is not a multiple of h {self.h}: "
                        f"give {name} as well"
                    )
                object.__setattr__(self, name, self.d_model // self.h)
        if self.target_vocab_size is None:
            object.__setattr__(self, "target_vocab_size", self.vocab_size)

    def _check_limits(self) -> None:
        for name, value in self.to_dict().items():
            most = MOST_OF.get(name, MOST)
            if isinstance(value, int) and value > most:
                raise InputError(f"{name} must be at most {most:,}, not {shown(value)}")

    def _check_vocabularies(self) -> None:
        if self.shared_embeddings and self.vocab_size != self.target_vocab_size:
            raise InputError(
                f"shared_embeddings needs one vocabulary, but vocab_size is {self.vocab_size} and "
                f"target_vocab_size is {self.target_vocab_size}"
            )
        smallest = min(self.vocab_size, self.target_size)
        must_be(
            f"an id below the vocabulary size {smallest}",
            lambda word: 0 <= word < smallest,
            self,
            "pad_id",
            "eos_id",
            "start_id",
        )

    def _check_halves(self) -> None:
        if not self.encoder_layers and not self.decoder_layers:
            raise InputError("a model needs layers: encoder_layers and decoder_layers are both 0")
        if self.alone is not None and not self.shared_embeddings:
            raise InputError(f"the {self.alone} alone has one vocabulary: set shared_embeddings")
        if self.alone == "decoder" and self.decoder_cell != "self-attention":
            raise InputError("a decoder alone has self-attention: leave decoder_cell out")
        if self.alone == "decoder" and self.start_id is None:
            raise InputError("a decoder alone begins with a token: give start_id")
        if self.alone != "encoder" and self.word_head != "plain":
            raise InputError(f"word_head {self.word_head!r} is for an encoder alone")

    @cached_property
    def alone(self) -> Literal["encoder", "decoder"] | None:
        """The half that there is, if there is only one."""
        if self.encoder_layers and self.decoder_layers:
            return None
        return "encoder" if self.encoder_layers else "decoder"

    @cached_property
    def target_size(self) -> int:
        """Size of the target vocabulary, resolved."""
        assert self.target_vocab_size is not None
        return self.target_vocab_size

    @cached_property
    def first_id(self) -> int:
        """What the decoder reads first: an id of no meaning if there is no start token."""
        return self.pad_id if self.start_id is None else self.start_id

    @cached_property
    def target_matrix(self) -> str:
        """Which part of the model holds the vectors of target words."""
        return "source_words" if self.shared_embeddings else "target_words"

    @cached_property
    def output_matrix(self) -> str:
        """Which part of the model holds the matrix of the softmax layer (section 3.4)."""
        return self.target_matrix if self.tied_output else "output"

    @cached_property
    def head_sizes(self) -> tuple[int, int]:
        """(d_k, d_v), resolved."""
        assert self.d_k is not None and self.d_v is not None
        return self.d_k, self.d_v

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build from plain values; an unknown key is an error that names it."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise InputError(f"unknown model setting {shown(key)}{nearest(key, known)}")
        return cls(**values)

    def save(self, path: Path) -> None:
        values = {"format_version": FORMAT_VERSION, **self.to_dict()}
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "ModelConfig":
        values = read_json(path)
        with naming(path):
            check_format(values.pop("format_version", 1))
            return cls.from_dict(values)


def check_format(version: object) -> None:
    """Refuse files of a program newer than this one: it cannot know what they mean."""
    if type(version) is not int or version < 1:
        raise InputError(f"format_version must be a whole number from 1 on, not {shown(version)}")
    if version > FORMAT_VERSION:
        raise InputError(
            f"it has format version {version}, and this mlx-transformer knows only up to "
            f"{FORMAT_VERSION}: install a newer mlx-transformer"
        )


# Every row of Table 3 under its letter, by what differs from `base`; then sizes for CPUs and tests.
# Head sizes that are not named are d_model / h.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "h": 16, "dropout": 0.3},
    "A-h1": {"h": 1},
    "A-h4": {"h": 4},
    "A-h16": {"h": 16},
    "A-h32": {"h": 32},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": {"encoder_layers": 2, "decoder_layers": 2},
    "C-N4": {"encoder_layers": 4, "decoder_layers": 4},
    "C-N8": {"encoder_layers": 8, "decoder_layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-dff1024": {"d_ff": 1024},
    "C-dff4096": {"d_ff": 4096},
    "D-dropout0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "D-smoothing0": {"label_smoothing": 0.0},
    "D-smoothing0.2": {"label_smoothing": 0.2},
    "E-learned": {"positions": "learned"},
    "small": {"vocab_size": 8000, "encoder_layers": 3, "decoder_layers": 3,
              "d_model": 256, "d_ff": 1024, "h": 4},
    "tiny": {"vocab_size": 1000, "encoder_layers": 2, "decoder_layers": 2,
             "d_model": 64, "d_ff": 256, "h": 2},
}  # fmt: skip


def preset(name: str, **overrides: Any) -> ModelConfig:
    """A named configuration, with some of its settings replaced.

    Head sizes and the target vocabulary follow d_model, h and vocab_size unless given too.
    """
    if name not in PRESETS:
        known = list(PRESETS)
        near = nearest(name, known) or "."
        raise InputError(f"unknown preset {name!r}{near} Known: {', '.join(known)}")
    values = PRESETS[name]
    if {"d_model", "h"} & overrides.keys():
        values = {key: value for key, value in values.items() if key != "d_k"}
    return ModelConfig.from_dict(values | overrides)
