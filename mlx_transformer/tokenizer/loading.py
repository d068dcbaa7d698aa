"""Which tokenizer a directory holds, by its files."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlx_transformer.config import ModelConfig
from mlx_transformer.errors import InputError, naming
from mlx_transformer.tokenizer import transformers_kinds
from mlx_transformer.tokenizer.fairseq import FairseqSide
from mlx_transformer.tokenizer.languages import pair_of
from mlx_transformer.tokenizer.moses import BpeSide, MosesBpe
from mlx_transformer.tokenizer.pieces import MarianSide, SentencePieceSide
from mlx_transformer.tokenizer.tags import Frame, OneWay, Tags
from mlx_transformer.tokenizer.tokenizer import Tokenizer
from mlx_transformer.tokenizer.transformers_files import SETTINGS, read_settings
from mlx_transformer.tokenizer.transformers_kinds import prefix_tags, read_vocab

END = "</s>"


CODES = "bpecodes"  # of subword-nmt or fastBPE


def load_tokenizer(directory: Path, config: ModelConfig | None = None) -> Tokenizer:
    """Read the tokenizer of a model directory, of whichever kind its files are.

    Given the config of the model, one that does not belong to it is refused.
    """
    kinds = (_load_marian, _load_bpe, _load_fairseq, _load_sentencepiece, transformers_kinds.load)
    for kind in kinds:
        try:
            tokenizer = kind(directory)
        except RuntimeError as error:  # of SentencePiece
            raise InputError(f"a SentencePiece model in {directory} is damaged") from error
        if tokenizer is not None:
            if config is not None:
                check_belongs(tokenizer, config, directory)
            return tokenizer
    raise InputError(
        f"{directory} has no tokenizer: no tokenizer.model, no source.model and target.model, "
        "no vocab.json with source.spm and target.spm, no dict.txt, no tokenizer.json"
    )


def check_belongs(tokenizer: Tokenizer, config: ModelConfig, where: Path) -> None:
    """MLX would read a row beyond the word matrix without a word, or crash; and a model that waits
    for another end of sentence never finds it."""
    for name, side, rows in (
        ("source", tokenizer.source, config.vocab_size),
        ("target", tokenizer.target, config.target_size),
    ):
        if side.size > rows:
            raise InputError(
                f"the {name} tokenizer in {where} has ids up to {side.size - 1:,}, "
                f"but the model has only {rows:,} words: they do not belong together"
            )
        end = side.id_of(END)
        if end is not None and end != config.eos_id:
            raise InputError(
                f"the {name} tokenizer in {where} ends a sentence with id {end}, but the model "
                f"with {config.eos_id}: they do not belong together",
                options=["eos_id"],
            )


def sentencepiece_tokenizer(source: bytes, target: bytes | None = None) -> Tokenizer:
    """From serialised SentencePiece models: one for both sides, or one a side."""
    if target is None:
        side = SentencePieceSide(source)
        return Tokenizer(side, side, {"tokenizer.model": source})
    files = {"source.model": source, "target.model": target}
    return Tokenizer(SentencePieceSide(source), SentencePieceSide(target), files)


def text_tokenizer(model: bytes, before: tuple[int, ...]) -> Tokenizer:
    """From a serialised SentencePiece model, for texts that begin with these ids."""
    plain = sentencepiece_tokenizer(model)
    if not before:
        return plain
    settings = json.dumps({"frame": {"before": list(before)}}).encode()
    files = {**plain.files, SETTINGS: settings}
    return Tokenizer(plain.source, plain.target, files, OneWay(Frame(before=before)))


def with_languages(tokenizer: Tokenizer, source: str, target: str) -> Tokenizer:
    """The same tokenizer; where a model has one direction, its files say which.

    Names that are no languages, as those of invented tasks, are not told.
    """
    if not isinstance(tokenizer.tags, OneWay) or pair_of(f"{source}-{target}") is None:
        return tokenizer
    settings = json.loads(tokenizer.files.get(SETTINGS, b"{}"))
    settings |= {"source_lang": source, "target_lang": target}
    files = {**tokenizer.files, SETTINGS: json.dumps(settings, indent=2).encode()}
    tags = replace(tokenizer.tags, sources=(source,), targets=(target,))
    return Tokenizer(tokenizer.source, tokenizer.target, files, tags)


def _load_sentencepiece(directory: Path) -> Tokenizer | None:
    for names in (["tokenizer.model"], ["source.model", "target.model"]):
        if all((directory / name).is_file() for name in names):
            plain = sentencepiece_tokenizer(*((directory / name).read_bytes() for name in names))
            files = {**plain.files, **_settings_file(directory)}
            return Tokenizer(plain.source, plain.target, files, _one_way(directory))
    return None


def _load_marian(directory: Path) -> Tokenizer | None:
    names = ["source.spm", "target.spm", "vocab.json"]
    if not all((directory / name).is_file() for name in names):
        return None
    if (directory / "target_vocab.json").is_file():
        names.append("target_vocab.json")
    files = {name: (directory / name).read_bytes() for name in names}
    vocab = read_vocab(directory / "vocab.json", files["vocab.json"])
    target_vocab = vocab
    if "target_vocab.json" in files:
        target_vocab = read_vocab(directory / "target_vocab.json", files["target_vocab.json"])
    files |= _settings_file(directory)
    source = MarianSide(files["source.spm"], vocab)
    target = MarianSide(files["target.spm"], target_vocab)
    return Tokenizer(source, target, files, _marian_tags(directory, source, vocab))


def _load_bpe(directory: Path) -> Tokenizer | None:
    """As Argos Translate has it where it has no SentencePiece: codes, and who numbers the pieces"""
    names = [CODES, "vocab.json"]
    if not all((directory / name).is_file() for name in names):
        return None
    if (directory / "target_vocab.json").is_file():
        names.append("target_vocab.json")
    files = {name: (directory / name).read_bytes() for name in names}
    vocabs = [read_vocab(directory / name, files[name]) for name in names[1:]]
    tags = _one_way(directory)
    cutters = _moses(directory, files[CODES].decode("utf-8", "replace"), tags)
    sides = zip(cutters, (vocabs[0], vocabs[-1]), strict=True)
    source, target = (BpeSide(cutter, vocab) for cutter, vocab in sides)
    return Tokenizer(source, target, files | _settings_file(directory), tags)


def _marian_tags(directory: Path, source: MarianSide, vocab: dict[str, int]) -> Tags:
    """A model into several languages has their tags in its vocabulary."""
    tags = {m[1]: piece for piece in vocab if (m := re.fullmatch(r">>(.+)<<", piece))}
    return prefix_tags(source, tags) if tags else _one_way(directory)


def _one_way(directory: Path) -> OneWay:
    """What tokenizer_config.json says of a model's languages (or else the name of its directory),
    and of what stands around a text:
    {"source_lang": "zh", "target_lang": "en", "frame": {"before": [], "after": [], "start": []}}"""
    settings = read_settings(directory / SETTINGS)
    said = [settings.get(key) for key in ("source_lang", "target_lang")]
    named = tuple(name for name in said if isinstance(name, str))
    if len(named) < 2:
        named = pair_of(directory.resolve().name) or ()
    with naming(directory):
        return OneWay(Frame.said(settings), named[:1], named[1:])


def _settings_file(directory: Path) -> dict[str, bytes]:
    path = directory / SETTINGS
    return {SETTINGS: path.read_bytes()} if path.is_file() else {}


def _load_fairseq(directory: Path) -> Tokenizer | None:
    pair = ["dict.source.txt", "dict.target.txt"]
    names = pair if all((directory / name).is_file() for name in pair) else ["dict.txt"] * 2
    if not (directory / names[0]).is_file():
        return None
    files = {name: (directory / name).read_bytes() for name in names}
    model = None
    for name in ("sentencepiece.bpe.model", "tokenizer.model"):
        if (directory / name).is_file():
            model = files[name] = (directory / name).read_bytes()
            break
    tags = _one_way(directory)
    cutters: Sequence[MosesBpe | None] = (None, None)
    if (directory / CODES).is_file():
        files[CODES] = (directory / CODES).read_bytes()
        cutters = _moses(directory, files[CODES].decode("utf-8", "replace"), tags)
    texts = [files[name].decode("utf-8", "replace") for name in names]
    source, target = (FairseqSide(t, model, m) for t, m in zip(texts, cutters, strict=True))
    return Tokenizer(source, target, files | _settings_file(directory), tags)


def _moses(directory: Path, codes: str, tags: OneWay) -> list[MosesBpe]:
    """How both sides are cut, by the codes beside the word lists"""
    settings = read_settings(directory / SETTINGS)
    how = {"normalised": settings.get("normalised") is True}
    how |= {name: settings.get(name) is not False for name in ("dashes", "moses")}
    languages = [(*known, "en")[0] for known in (tags.sources, tags.targets)]
    return [MosesBpe(codes, language, **how) for language in languages]
