"""Repositories as they lie on the hub, file by file, with the oddities of each: small random
weights in the layout of models that people know, by name, to the last word written."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentencepiece import SentencePieceProcessor

from mlx_transformer.__main__ import main
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.tokenizer import language_names
from tests.hub_server import HubServer
from tests.parity import test_tokenizers as published
from tests.parity.test_hub_models import T5, TINY, add_to
from tests.test_hub import use_hub
from tests.tokenizer.ten_scripts import lines

pytestmark = pytest.mark.slow

# What every old config.json carries along and nobody reads.
OLD = {
    "_num_labels": 3, "add_bias_logits": False, "classif_dropout": 0.0, "extra_pos_embeddings": 2,
    "force_bos_token_to_be_generated": False, "gradient_checkpointing": False, "output_past": True,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "normalize_before": False, "normalize_embedding": True, "static_position_embeddings": False,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
}  # fmt: skip
# Weights of other programs beside PyTorch's.
OTHERS = ("tf_model.h5", "rust_model.ot", "flax_model.msgpack", "README.md", ".gitattributes")
PREFIXES = {
    f"translation_en_to_{code}": {"num_beams": 4, "prefix": f"translate English to {name}: "}
    for code, name in (("de", "German"), ("fr", "French"), ("ro", "Romanian"))
}
ENGLISH = [
    "The train in the north is late, and nobody knows why.", "An old hand in the inner garden.",
    "Whether it rains or not, they then gather there.", "\"Never again,\" said the other brother.",
    "It's 3.5 km to the station.", "Mr. Anders isn't in.", "and and and", "Another thin thing!",
]  # fmt: skip
TASKS = {"summarization": {"length_penalty": 2.0, "prefix": "summarize: "}, **PREFIXES}
# Quantising needs 64 columns; and nobody should take one stack's depth for the other's.
TALL = {**TINY, "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_layers": 3}
WIDE = {**T5, "d_model": 64, "d_ff": 128}


@dataclass(frozen=True)
class Layout:
    """A repository: its model, what its files say, and how both sides are told what to do."""

    make: Callable[[Path], Any]
    config: dict[str, Any] = field(default_factory=dict)  # put into config.json
    generation: dict[str, Any] | None = None  # None: there is no generation_config.json
    flags: list[str] = field(default_factory=list)
    languages: dict[str, str] = field(default_factory=dict)
    first: str | None = None
    prefix: str = ""
    weights: str = "safetensors"  # or shards, old (a pickle of 2019), pickle
    twice: bool = False  # shared matrices are stored under each of their names
    half: bool = False
    texts: list[str] = field(default_factory=lambda: lines()[:12])


def marian_files(folder: Path, tags: tuple[str, ...] = (), **said: Any) -> int:
    """Files of OPUS-MT; returns the id of padding, which is the last."""
    model = published.sentencepiece("unigram", bos_id=-1)
    pieces = SentencePieceProcessor(model_proto=model)
    words = ["</s>", "<unk>", *tags]
    words += [pieces.id_to_piece(i) for i in range(3, pieces.vocab_size())] + ["<pad>"]
    for name in ("source.spm", "target.spm"):
        published.write(folder / name, model)
    published.write(folder / "vocab.json", {word: i for i, word in enumerate(words)})
    published.write(folder / "tokenizer_config.json", said)
    return len(words) - 1


def marian_model(last: int, **more: Any) -> Any:
    config = transformers.MarianConfig(
        vocab_size=last + 1, pad_token_id=last, eos_token_id=0, decoder_start_token_id=last,
        scale_embedding=True, max_position_embeddings=64, **{**TALL, **more}
    )  # fmt: skip
    return transformers.MarianMTModel(config)


def opus(folder: Path) -> Any:
    return marian_model(marian_files(folder, source_lang="en", target_lang="de"))


def opus_big(folder: Path) -> Any:
    tags = (">>deu<<", ">>nds<<")
    last = marian_files(
        folder, tags, source_lang="en", target_lang="gmw", tokenizer_class="MarianTokenizer",
        separate_vocabs=False, model_max_length=512, sp_model_kwargs={},
    )  # fmt: skip
    published.write(folder / "special_tokens_map.json", {"eos_token": "</s>", "pad_token": "<pad>"})
    published.write(folder / "benchmark_results.txt", b"flores101-devtest 40.3\n")
    return marian_model(last, share_encoder_decoder_embeddings=True)


def bart_cnn(folder: Path) -> Any:
    published.bart(folder)
    published.write(folder / "tokenizer_config.json", {"model_max_length": 1024})
    config = transformers.BartConfig(vocab_size=900, max_position_embeddings=1_024, **TALL)
    return transformers.BartForConditionalGeneration(config)


def pegasus(folder: Path) -> Any:
    published.pegasus(folder)
    published.write(folder / "tokenizer_config.json", {"model_max_length": 512})
    published.write(folder / "special_tokens_map.json", {"eos_token": "</s>", "pad_token": "<pad>"})
    config = transformers.PegasusConfig(
        vocab_size=1_003, max_position_embeddings=512, scale_embedding=True,
        activation_function="relu", **TALL,
    )  # fmt: skip
    return transformers.PegasusForConditionalGeneration(config)


def t5_small(folder: Path) -> Any:
    published.t5(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # tokenizer.json
    published.write(folder / "tokenizer_config.json", {"model_max_length": 512})
    settings = {**WIDE, "tie_word_embeddings": True, "feed_forward_proj": "relu"}
    config = transformers.T5Config(vocab_size=1_024, decoder_start_token_id=0, **settings)
    return transformers.T5ForConditionalGeneration(config)


def flan(folder: Path) -> Any:
    published.t5(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    config = transformers.T5Config(vocab_size=1_024, decoder_start_token_id=0, **WIDE)
    return transformers.T5ForConditionalGeneration(config)


def mt5(folder: Path) -> Any:
    published.t5(folder)
    said = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 0,
            "additional_special_tokens": None, "sp_model_kwargs": {},
            "name_or_path": "google/mt5-small", "tokenizer_class": "T5Tokenizer"}  # fmt: skip
    published.write(folder / "tokenizer_config.json", said)
    published.write(folder / "special_tokens_map.json", {"eos_token": "</s>", "pad_token": "<pad>"})
    config = transformers.MT5Config(vocab_size=912, decoder_start_token_id=0, **WIDE)
    return transformers.MT5ForConditionalGeneration(config)


def umt5(folder: Path) -> Any:
    published.t5(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    config = transformers.UMT5Config(vocab_size=1_040, decoder_start_token_id=0, **WIDE)
    return transformers.UMT5ForConditionalGeneration(config)


def byt5(folder: Path) -> Any:
    sentinels = [f"<extra_id_{i}>" for i in range(125)]
    mark = {"content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": True, "__type": "AddedToken"}  # fmt: skip
    published.settings(
        folder, "ByT5Tokenizer", eos_token=mark, extra_ids=125, additional_special_tokens=sentinels
    )
    published.write(folder / "special_tokens_map.json", {"additional_special_tokens": sentinels})
    settings = {**WIDE, "num_decoder_layers": 1}
    config = transformers.T5Config(vocab_size=384, decoder_start_token_id=0, **settings)
    return transformers.T5ForConditionalGeneration(config)


def madlad(folder: Path) -> Any:
    """Padding is <s>, and the decoder starts from <unk>."""
    special = {"pad_id": -1, "eos_id": 2, "unk_id": 0, "bos_id": 1}
    tags = ["<2de>", "<2fr>", "<2zh_Latn>"]
    model = published.sentencepiece("unigram", user_defined_symbols=tags, **special)
    published.write(folder / "spiece.model", model)
    said = {"pad_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "extra_ids": 0,
            "additional_special_tokens": [], "legacy": False}  # fmt: skip
    published.settings(folder, "T5Tokenizer", **said)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    published.write(folder / "added_tokens.json", {})
    config = transformers.T5Config(
        vocab_size=900, pad_token_id=1, eos_token_id=2, decoder_start_token_id=0, **WIDE
    )
    return transformers.T5ForConditionalGeneration(config)


def nllb(folder: Path) -> Any:
    published.nllb(folder)
    add_to(folder / "tokenizer_config.json", {"src_lang": None, "tgt_lang": None})
    config = transformers.M2M100Config(vocab_size=1_110, max_position_embeddings=64, **TALL)
    return transformers.M2M100ForConditionalGeneration(config)


def m2m100(folder: Path) -> Any:
    published.m2m100(folder)
    add_to(
        folder / "tokenizer_config.json",
        {"src_lang": None, "tgt_lang": None, "language_codes": "m2m100", "num_madeup_words": 8},
    )
    config = transformers.M2M100Config(vocab_size=1_009, max_position_embeddings=64, **TALL)
    return transformers.M2M100ForConditionalGeneration(config)


def wmt21(folder: Path) -> Any:
    published.m2m100(folder)
    tags = [f"__{code}__" for code in language_names.WMT21]
    said = {"language_codes": "wmt21", "num_madeup_words": 0, "additional_special_tokens": tags}
    published.settings(folder, "M2M100Tokenizer", **said)
    config = transformers.M2M100Config(
        vocab_size=901 + len(tags), max_position_embeddings=64, scale_embedding=True, **TALL
    )
    return transformers.M2M100ForConditionalGeneration(config)


def fsmt(folder: Path) -> Any:
    """Two lists of words, whose pieces end in </w>, and merges with their counts"""
    letters = sorted({letter for line in ENGLISH for letter in line if letter != " "})
    merges = ["t h 9", "th e</w> 8", "a n 7", "an d</w> 6", "i n 5", "e r 4", "i n</w> 3"]
    merged = ["".join(merge.split()[:2]) for merge in merges]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *merged]
    for name, words in (("src", pieces), ("tgt", pieces[::-1])):
        listed = ["<s>", "<pad>", "</s>", "<unk>", *words]
        published.write(folder / f"vocab-{name}.json", {word: i for i, word in enumerate(listed)})
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    languages = ["en", "de"]
    published.settings(folder, "FSMTTokenizer", langs=languages, do_lower_case=False)
    config = transformers.FSMTConfig(
        langs=languages, src_vocab_size=4 + len(pieces), tgt_vocab_size=4 + len(pieces),
        max_position_embeddings=64, scale_embedding=True, decoder_start_token_id=2, **TALL
    )  # fmt: skip
    return transformers.FSMTForConditionalGeneration(config)


def mbart50(folder: Path) -> Any:
    published.mbart50(folder)
    add_to(
        folder / "tokenizer_config.json",
        {"src_lang": None, "tgt_lang": None, "language_codes": "ML50", "sp_model_kwargs": {}},
    )
    config = transformers.MBartConfig(
        vocab_size=960, max_position_embeddings=64, decoder_start_token_id=2, **TALL
    )
    return transformers.MBartForConditionalGeneration(config)


def mbart_en_ro(folder: Path) -> Any:
    published.mbart(folder)
    published.write(folder / "tokenizer_config.json", {"model_max_length": 1024})
    config = transformers.MBartConfig(
        vocab_size=927, max_position_embeddings=128, decoder_start_token_id=920,
        scale_embedding=True, **TALL
    )  # fmt: skip
    return transformers.MBartForConditionalGeneration(config)


LAYOUTS = {
    "Helsinki-NLP/opus-mt-en-de": Layout(
        opus,
        {**OLD, "static_position_embeddings": True, "max_length": 24, "num_beams": 6},
        weights="old", twice=True,
    ),
    "Helsinki-NLP/opus-mt-tc-big-en-gmw": Layout(
        opus_big, {"tokenizer_class": "MarianTokenizer"},
        {"max_length": 24, "num_beams": 4, "renormalize_logits": True, "forced_eos_token_id": 0},
        ["--to", "deu"], prefix=">>deu<< ", weights="pickle", twice=True, half=True,
    ),
    "facebook/nllb-200-distilled-600M": Layout(
        nllb, {"tokenizer_class": "NllbTokenizer", "max_length": 24},
        {"_from_model_config": True, "max_length": 24},
        ["--to", "fra_Latn"], {"src_lang": "eng_Latn"}, "fra_Latn", weights="pickle", twice=True,
    ),
    "facebook/m2m100_418M": Layout(
        m2m100, {**OLD, "num_beams": 5, "early_stopping": True, "max_length": 24},
        {"num_beams": 5, "early_stopping": True, "max_length": 24},
        ["--from", "de", "--to", "fr"], {"src_lang": "de"}, "__fr__", weights="old", twice=True,
    ),
    "facebook/wmt21-dense-24-wide-en-x": Layout(
        wmt21, {"tokenizer_class": "M2M100Tokenizer"},
        {"num_beams": 5, "early_stopping": True, "max_length": 24, "forced_eos_token_id": 2},
        ["--to", "Hausa"], {"src_lang": "en"}, "__ha__", weights="pickle", twice=True,
    ),
    "facebook/wmt19-en-de": Layout(
        fsmt, {**OLD, "num_beams": 5, "max_length": 24, "early_stopping": False,
               "length_penalty": 1.15}, weights="old", twice=True, texts=ENGLISH,
    ),
    "facebook/mbart-large-50-many-to-many-mmt": Layout(
        mbart50, {**OLD, "normalize_before": True, "add_final_layer_norm": True},
        {"num_beams": 5, "early_stopping": True, "max_length": 24, "forced_eos_token_id": 2},
        ["--from", "de", "--to", "fr"], {"src_lang": "de_DE"}, "fr_XX", twice=True,
    ),
    "facebook/mbart-large-en-ro": Layout(
        mbart_en_ro,
        {**OLD, "num_beams": 5, "max_length": 24,
         "task_specific_params": {"translation_en_to_ro": {"decoder_start_token_id": 920}}},
        flags=["--from", "en"], languages={"src_lang": "en_XX", "tgt_lang": "ro_RO"},
        weights="old", twice=True,
    ),
    "google/madlad400-3b-mt": Layout(
        madlad, generation={"max_length": 24}, flags=["--to", "fr"], prefix="<2fr> ",
        weights="shards",
    ),
    "google-t5/t5-small": Layout(
        t5_small, {"task_specific_params": TASKS, "n_positions": 512, "output_past": True},
        {"_from_model_config": True, "max_length": 24}, ["--to", "German"],
        prefix="translate English to German: ",
    ),
    "google/flan-t5-base": Layout(
        flan, {"task_specific_params": TASKS, "n_positions": 512}, {"max_length": 24},
        weights="shards", half=True,
    ),
    "google/mt5-small": Layout(
        mt5, {"tokenizer_class": "T5Tokenizer", "max_length": 24, "architectures": None},
        weights="old",
    ),
    "google/umt5-small": Layout(
        umt5, {"tokenizer_class": "T5Tokenizer", "scalable_attention": True},
        {"max_length": 24}, weights="pickle",
    ),
    "google/byt5-small": Layout(
        byt5, {"tokenizer_class": "ByT5Tokenizer", "gradient_checkpointing": False},
        {"max_length": 24}, weights="pickle",
    ),
    "facebook/bart-large-cnn": Layout(
        bart_cnn,
        {**OLD, "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
         "length_penalty": 2.0, "max_length": 24, "min_length": 12, "no_repeat_ngram_size": 3,
         "num_beams": 4, "prefix": " "},
        weights="old", twice=True,
    ),
    "google/pegasus-xsum": Layout(
        pegasus,
        {**OLD, "static_position_embeddings": True, "length_penalty": 0.6, "max_length": 24,
         "num_beams": 8, "forced_eos_token_id": 1},
        weights="old", twice=True,
    ),
}  # fmt: skip

OF_NO_LANGUAGE = (
    *("google/mt5-small", "google/umt5-small", "google/byt5-small"),
    *("facebook/bart-large-cnn", "google/pegasus-xsum"),
)


def publish(layout: Layout, folder: Path) -> Any:
    torch.manual_seed(1)
    model = layout.make(folder).eval()
    model = model.half() if layout.half else model
    size = {"max_shard_size": "60KB"} if layout.weights == "shards" else {}
    model.save_pretrained(folder, **size)
    write_config(layout, folder)
    if layout.weights in ("old", "pickle"):
        (folder / "model.safetensors").unlink()
        state = {name: t for name, t in model.state_dict().items() if not by_formula(name, model)}
        state = state if layout.twice else without_repeats(state)
        if layout.weights == "old" and "bart" in model.config.model_type:
            state |= {
                f"model.{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")
            }
        zipped = layout.weights == "pickle"
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    for name in OTHERS:
        (folder / name).write_bytes(b"not ours")
    return model.float()


def by_formula(name: str, model: Any) -> bool:
    """Sinusoids, which Marian's and Pegasus' files have not."""
    return "embed_positions" in name and model.config.model_type in ("marian", "pegasus")


def write_config(layout: Layout, folder: Path) -> None:
    add_to(folder / "config.json", layout.config)
    said = json.loads((folder / "config.json").read_text())
    if layout.weights == "old":
        for name in ("dtype", "transformers_version"):
            said.pop(name, None)
    (folder / "config.json").write_text(json.dumps(said))
    if layout.generation is None:
        (folder / "generation_config.json").unlink()
    else:
        add_to(folder / "generation_config.json", layout.generation)


def without_repeats(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    kept = {}
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen:
            kept[name] = tensor
        seen.add(tensor.data_ptr())
    return kept


def written_by_transformers(layout: Layout, folder: Path, texts: list[str]) -> list[str]:
    """With the settings that its own loader finds in the files"""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    name = {
        "marian": "MarianMTModel",
        "m2m_100": "M2M100ForConditionalGeneration",
        "fsmt": "FSMTForConditionalGeneration",
    }.get(kind)
    name = name or {"bart": "Bart", "mbart": "MBart", "pegasus": "Pegasus"}.get(kind, kind.upper())
    name = name if name.endswith(("Model", "Generation")) else f"{name}ForConditionalGeneration"
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **layout.languages)
    wanted = {}
    if layout.first is not None:
        wanted["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(layout.first)
    found = []
    for text in texts:
        ids = tokenizer(layout.prefix + text, return_tensors="pt")
        text = tokenizer.decode(model.generate(**ids, **wanted)[0], skip_special_tokens=True)
        found.append(" ".join(text.splitlines()).strip())
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_repository_as_it_lies_on_the_hub(name, tmp_path, monkeypatch, capsys):
    layout, folder = LAYOUTS[name], tmp_path / "published"
    folder.mkdir()
    publish(layout, folder)
    (tmp_path / "in.txt").write_text("\n".join(layout.texts) + "\n", encoding="utf-8")
    with use_hub(HubServer(), tmp_path, monkeypatch) as server:
        server.models[name] = folder
        said = ["--model", name, *layout.flags, "--input", str(tmp_path / "in.txt")]
        assert main(["translate", *said]) == 0, capsys.readouterr().err
        written = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert not {file for _, file in server.requests} & {*OTHERS}
        server.stop()  # from here on without a network
        assert main(["info", name, "--json"]) == 0
        generation = json.loads(capsys.readouterr().out)["generation"]
        assert main(["info", name, "--languages"]) == (2 if name in OF_NO_LANGUAGE else 0)
        assert main(["models"]) == 0
        assert name in capsys.readouterr().out
    assert written == written_by_transformers(layout, folder, layout.texts)
    assert len({*written}) > 4, "a model that always writes the same shows nothing"
    published_beams = {**layout.config, **(layout.generation or {})}.get("num_beams", 1)
    assert generation.get("beam", SearchOptions().beam) == published_beams
    small = str(tmp_path / "small")
    assert main(["convert", str(folder), small, "--quantize", "4"]) == 0
    assert main(["translate", "--model", small, *layout.flags, layout.texts[0]]) == 0
    assert capsys.readouterr().out.strip()
