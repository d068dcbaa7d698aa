"""The tokenizers of transformers: how each class numbers a text, and what it puts around it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.untrusted import parse_json
from mlx_transformer.tokenizer import language_names
from mlx_transformer.tokenizer.characters import CharacterSide, WordSide
from mlx_transformer.tokenizer.listed import is_special, read_list, special_ids
from mlx_transformer.tokenizer.pieces import VocabularySide
from mlx_transformer.tokenizer.raw_bytes import ByteSide
from mlx_transformer.tokenizer.sides import Side, load_sentencepiece
from mlx_transformer.tokenizer.tags import (
    Frame,
    FrameIds,
    LanguageBehind,
    LanguageIds,
    OneWay,
    Prefixes,
    Tags,
)
from mlx_transformer.tokenizer.tokenizer import Tokenizer
from mlx_transformer.tokenizer.transformers_files import SENTENCEPIECE, SETTINGS, collect

Settings = Mapping[str, Any]
PieceIds = Mapping[str, int]

FAIRSEQ_START = ("<s>", "<pad>", "</s>", "<unk>")
BART_SPECIAL = (*FAIRSEQ_START, "<mask>")
END_OF_TEXT = "<|endoftext|>"  # all that GPT-2 has
# The languages of classes whose SentencePiece model does not hold them: they follow its pieces.
LANGUAGES = {
    "NllbTokenizer": language_names.NLLB,
    "MBartTokenizer": language_names.MBART,
    "MBart50Tokenizer": language_names.MBART50,
}
# How languages look among the tokens of a class, and the one that is read unless another is named.
LANGUAGE_TOKENS = {
    "M2M100Tokenizer": (re.compile(r"__([a-z]{2,3})__"), "en"),
    "NllbTokenizer": (re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), "eng_Latn"),
    "MBartTokenizer": (re.compile(r"([a-z]{2}_[A-Z]{2})"), "en_XX"),
    "MBart50Tokenizer": (re.compile(r"([a-z]{2}_[A-Z]{2})"), "en_XX"),
}
MADLAD_TAG = re.compile(r"<2([A-Za-z_]+)>")


def load(directory: Path) -> Tokenizer | None:
    files = collect(directory)
    if not files:
        return None
    settings = json.loads(files[SETTINGS])
    source, target, vocab = _sides(directory, settings, files)
    return Tokenizer(source, target, files, _tags(settings, source, vocab))


# Pieces and their ids


def _sides(
    directory: Path, settings: Settings, files: Mapping[str, bytes]
) -> tuple[Side, Side, PieceIds]:
    """Both sides, and the tokens that may name languages."""
    if "characters.json" in files:
        return *_character_sides(directory / "characters.json", files["characters.json"]), {}
    side: Side = ByteSide()
    vocab: PieceIds = {}
    model = next((files[name] for name in SENTENCEPIECE if name in files), None)
    if {"tokenizer.json", "merges.txt", "vocab.txt"} & files.keys():
        from mlx_transformer.tokenizer.json_file import JsonSide

        content = files.get("tokenizer.json") or _as_json(directory, settings, files)
        side = JsonSide(content, settings.get("vocab_size"))
        vocab = side.vocab
    elif model is not None:
        vocab, special = _numbered(directory, settings, model, files)
        side = VocabularySide(model, vocab, special)
    elif "vocab.json" in files:
        vocab = read_list(directory / "vocab.json")
        side = _listed(directory / "vocab.json", vocab)
        if "target_vocab.json" in files:
            path = directory / "target_vocab.json"
            return side, _listed(path, read_list(path)), vocab
    return side, side, vocab


def _as_json(directory: Path, settings: Settings, files: Mapping[str, bytes]) -> bytes:
    """The tokenizer.json of directories from before there was one."""
    from mlx_transformer.tokenizer.json_file import byte_level_bpe, word_pieces

    if "vocab.txt" in files:
        return word_pieces(files["vocab.txt"].decode("utf-8", "replace"), settings)
    gpt2 = settings["tokenizer_class"] == "GPT2Tokenizer"
    unknown, special = (END_OF_TEXT, (END_OF_TEXT,)) if gpt2 else ("<unk>", BART_SPECIAL)
    vocab = read_vocab(directory / "vocab.json", files["vocab.json"], unknown)
    return byte_level_bpe(vocab, files["merges.txt"].decode("utf-8", "replace"), special)


def _numbered(
    directory: Path, settings: Settings, model: bytes, files: Mapping[str, bytes]
) -> tuple[PieceIds, Sequence[str]]:
    """The ids that the class gives the pieces of a SentencePiece model, and its special tokens."""
    kind = settings["tokenizer_class"]
    if kind == "M2M100Tokenizer":
        return _m2m100(settings, read_vocab(directory / "vocab.json", files["vocab.json"]))
    processor = load_sentencepiece(model)
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    if kind in LANGUAGES:
        special = [*FAIRSEQ_START, *LANGUAGES[kind], "<mask>"]
        words = [*FAIRSEQ_START, *pieces[3:], *LANGUAGES[kind], "<mask>"]
    elif kind == "PegasusTokenizer":
        start = ["<pad>", "</s>", "<mask_1>", "<mask_2>"]
        reserved = [f"<unk_{i}>" for i in range(2, settings.get("offset", 103))]
        special = [*start, "<unk>", *reserved]
        words = [*start, *reserved, *pieces[2:]]
    else:
        sentinels = [f"<extra_id_{i}>" for i in range(settings.get("extra_ids", 100) - 1, -1, -1)]
        special = ["<pad>", "</s>", "<unk>", *sentinels]
        words = [*pieces, *sentinels]
    return {word: i for i, word in enumerate(words)}, special


def _m2m100(settings: Settings, vocab: PieceIds) -> tuple[PieceIds, Sequence[str]]:
    wmt21 = settings.get("language_codes") == "wmt21"
    tags = [f"__{c}__" for c in (language_names.WMT21 if wmt21 else language_names.M2M100)]
    following = {tag: len(vocab) + i for i, tag in enumerate(tags)}
    return {**vocab, **following}, [*FAIRSEQ_START, *tags]


def _character_sides(path: Path, content: bytes) -> tuple[Side, Side]:
    """{"graphemes": [...], "phonemes": [...]}: four reserved places (pad, start, end, unknown)."""
    lists = parse_json(content, str(path))
    sides = []
    for name in ("graphemes", "phonemes"):
        characters = lists.get(name)
        if not isinstance(characters, list) or not all(isinstance(c, str) for c in characters):
            raise InputError(f"{path} must hold a list {name!r}")
        vocab = {c: i for i, c in enumerate(characters) if i >= 4}
        sides.append(CharacterSide(vocab, range(4), unk_id=3))
    return sides[0], sides[1]


def _listed(path: Path, vocab: PieceIds) -> Side:
    """A vocab.json alone numbers characters, or else words; <...> and [...] are special."""
    special = [i for word, i in vocab.items() if is_special(word)]
    plain = {word: i for word, i in vocab.items() if i not in special}
    side = CharacterSide if all(len(word) == 1 for word in plain) else WordSide
    named = special_ids(vocab)
    unknown = named.get("unknown", named.get("pad"))  # without one, as if it were not there
    if unknown is None:
        raise InputError(f"{path} numbers neither <unk> nor <pad>: add one to it")
    return side(plain, special, unknown)


def read_vocab(path: Path, content: bytes, needed: str = "<unk>") -> dict[str, int]:
    vocab = parse_json(content, str(path))
    valid = all(type(i) is int and i >= 0 for i in vocab.values())
    if not valid or needed not in vocab:
        raise InputError(f"{path} must be a JSON object from pieces to ids that has {needed}")
    return vocab


# What stands around a text


def _tags(settings: Settings, side: Side, vocab: PieceIds) -> Tags:
    if settings["tokenizer_class"] in LANGUAGE_TOKENS:
        return _language_tags(settings, vocab)
    if madlad := {m[1]: token for token in vocab if (m := MADLAD_TAG.fullmatch(token))}:
        return prefix_tags(side, madlad)
    if "prefixes" in settings:
        return _task_prefixes(side, settings["prefixes"])
    return OneWay(_frame(settings, side, vocab))


def _language_tags(settings: Settings, vocab: PieceIds) -> Tags:
    kind = settings["tokenizer_class"]
    pattern, usual = LANGUAGE_TOKENS[kind]
    codes = {m[1]: i for token, i in vocab.items() if (m := pattern.fullmatch(token))}
    codes = dict(sorted(codes.items(), key=lambda item: item[1]))
    by_id = {i: code for code, i in codes.items()}
    source = settings.get("src_lang") or usual
    source = source if source in codes else None
    end: FrameIds = (vocab["</s>"],)
    if kind == "MBartTokenizer":
        target = by_id.get(settings.get("decoder_start_token_id", -1))
        return LanguageBehind(codes, end, source, target)
    target = by_id.get(settings.get("forced_bos_token_id", -1))
    return LanguageIds(codes, source, target, end if settings.get("legacy_behaviour") else None)


def prefix_tags(side: Side, tags: Mapping[str, str]) -> Prefixes:
    """A tag before the source names the target: by language code, as it is written."""
    pairs: dict[tuple[str | None, str], FrameIds] = {}
    for code, tag in tags.items():
        pairs[None, code] = tuple(side.encode([tag])[0])
    return Prefixes(pairs, {tag: code for code, tag in tags.items()})


def _task_prefixes(side: Side, prefixes: Mapping[str, str]) -> Prefixes:
    """{"en to de": "translate English to German: "}"""
    pairs: dict[tuple[str | None, str], FrameIds] = {}
    for pair, text in prefixes.items():
        source, _, target = pair.partition(" to ")
        pairs[source, target] = tuple(side.encode([text])[0])
    return Prefixes(pairs, optional=True)


def _frame(settings: Settings, side: Side, vocab: PieceIds) -> Frame:
    if "frame" in settings:
        return Frame.said(settings)
    kind, forced = settings["tokenizer_class"], settings.get("forced_bos_token_id")
    start = () if forced is None else (forced,)
    if kind in ("BartTokenizer", "RobertaTokenizer"):
        return Frame(before=(settings.get("bos_token_id", vocab.get("<s>", 0)),), start=start)
    if kind not in ("T5Tokenizer", "PegasusTokenizer", "ByT5Tokenizer") and hasattr(side, "around"):
        before, after = side.around()
        return Frame(before, after, start)
    return Frame(start=start)
