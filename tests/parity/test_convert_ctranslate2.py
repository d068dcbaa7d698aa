"""CTranslate2's own library beside its models converted: equal ids, equal scores."""

import io
import json
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import sacremoses
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from mlx_transformer.convert.checkpoint import read_checkpoint
from mlx_transformer.convert.conversion import convert
from mlx_transformer.convert.family import Options
from mlx_transformer.convert.verify import verify
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.decoding.scoring import score_pairs
from mlx_transformer.decoding.search import Search
from mlx_transformer.decoding.translator import load
from mlx_transformer.errors import InputError, RunError
from mlx_transformer.storage import load_model
from tests.ctranslate2_models import D_MODEL, WORDS, write_model

Activation = ctranslate2.specs.Activation
OTHER_WORDS = ["<blank>", "<unk>", "<s>", "</s>", *(f"v{i}" for i in range(50))]
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"pre_norm": False, "no_final_norm": True, "activation": Activation.SWISH},
    "gelu": {"activation": Activation.GELU, "layernorm_embedding": True},
    "gelu tanh": {"activation": Activation.GELUTanh, "scale": False},
    "gelu sigmoid": {"activation": Activation.GELUSigmoid, "scale": float(D_MODEL**0.5)},
    "gated": {"ffn_glu": True, "config": {"layer_norm_epsilon": 1e-3}},
    "rms": {"rms_norm": True, "projection_bias": False},
    "computed positions": {"table": False, "outputs_scale": 0.5},
    "from zero": {"from_zero": True},
    "two vocabularies": {"words": (WORDS, ["</s>", "<s>", "<unk>", *OTHER_WORDS[4:]])},
    **{q: {"quantization": q} for q in ("int8", "int8_float16", "int16", "float16", "bfloat16")},
}


def sources(words: list[str]) -> list[list[str]]:
    generator = np.random.default_rng(1)
    return [list(generator.choice(words[4:], n)) for n in (1, 3, 5, 8, 8, 13)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ids_and_scores_are_equal(tmp_path: Path, name: str) -> None:
    settings = {"config": {}, **MODELS[name]}
    settings["config"] = {**settings["config"], "add_source_eos": name != "two vocabularies"}
    directory = write_model(tmp_path / "ct2", **settings)
    convert(directory, tmp_path / "ours", dtype="float32")
    assert_equal(directory, tmp_path / "ours", settings)


def assert_equal(directory: Path, converted: Path, settings: dict[str, Any]) -> None:
    source_words, target_words = settings.get("words") or (WORDS, WORDS)
    model = load_model(converted)
    theirs = ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)
    texts = sources(source_words)
    # A start token never comes from us.
    found = theirs.translate_batch(
        texts, beam_size=1, max_decoding_length=12, suppress_sequences=[["<s>"]]
    )
    end = [model.config.eos_id] if settings["config"]["add_source_eos"] else []
    ids = [[*map(source_words.index, words), *end] for words in texts]
    search = Search(model, SearchOptions(beam=1, max_tokens=12))
    ours = [results[0].ids for results in search.each((i, []) for i in ids)]
    assert [[target_words[i] for i in words] for words in ours] == [r.hypotheses[0] for r in found]

    targets = sources(target_words)
    scored = theirs.score_batch(texts, targets)
    pairs = [[*map(target_words.index, words), model.config.eos_id] for words in targets]
    logp = [score.logp for score in score_pairs(model, ids, pairs)]
    # CTranslate2's RMS norm is an approximation: 4e-4 from ours, with any epsilon.
    relative = 1e-3 if settings.get("rms_norm") else 0
    assert logp == pytest.approx([sum(s.log_probs) for s in scored], abs=2e-4, rel=relative)


def test_text_becomes_text(tmp_path: Path) -> None:
    """Argos's zip and the folder that it unpacks to give the same directory."""
    directory = write_model(tmp_path / "model", config={"add_source_eos": False})
    packed = tmp_path / "translate-xx_yy.argosmodel"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("top/metadata.json", json.dumps({"from_code": "xx", "to_code": "yy"}))
        file.writestr("top/sentencepiece.model", b"pieces")
        for path in directory.iterdir():
            file.write(path, f"top/model/{path.name}")
    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "unpacked")
    for source, out in ((packed, "a"), (tmp_path / "unpacked" / "top", "b")):
        convert(source, tmp_path / out)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"vocab.json", "source.spm", "target.spm", "tokenizer_config.json"} < {*names}
    for name in names:
        if name != "README.md":
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    settings = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())
    assert settings == {"source_lang": "xx", "target_lang": "yy", "frame": {"after": []}}


def test_packages_cut_by_bpe_codes(tmp_path: Path) -> None:
    """Older Argos packages: Moses's words, subword-nmt's codes, the model's own numbers."""
    text = "the well-known man doesn't like the “red” tree .\nthe dog sees two trees\n"
    codes = io.StringIO()
    learn_bpe(io.StringIO(text * 9), codes, 25)
    normalise = sacremoses.MosesPunctNormalizer("en").normalize
    cut_words, bpe = sacremoses.MosesTokenizer("en").tokenize, BPE(io.StringIO(codes.getvalue()))
    lines = text.splitlines()
    pieces = [bpe.segment_tokens(cut_words(normalise(line))) for line in lines]
    words = ["<unk>", "<s>", "</s>", *sorted({piece for line in pieces for piece in line})]
    package = tmp_path / "package"
    package.mkdir()
    (package / "bpe.model").write_text(codes.getvalue())
    (package / "metadata.json").write_text(json.dumps({"from_code": "en", "to_code": "de"}))
    write_model(package / "model", words=(words, words), config={"add_source_eos": False})
    convert(package, tmp_path / "ours")
    ours = load(tmp_path / "ours")
    ids = ours.tokenizer.encode_source_batch(lines)
    assert [[words[i] for i in line] for line in ids] == pieces
    assert any(piece.endswith("@@") for line in pieces for piece in line)
    assert "@-@" not in words  # a dash stays within its word
    theirs = ctranslate2.Translator(str(package / "model"), compute_type="float32")
    found = theirs.translate_batch(
        pieces, beam_size=1, max_decoding_length=8, suppress_sequences=[["<s>"]]
    )
    joined = [
        sacremoses.MosesDetokenizer("de").detokenize(
            (" ".join(result.hypotheses[0]) + " ").replace("@@ ", "").split()
        )
        for result in found
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cut at the limit
        assert [t.text for t in ours.translate(lines, beam=1, max_tokens=8)] == joined


def test_vocabularies_in_plain_text(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "ct2")
    convert(directory, tmp_path / "json")
    listed = directory / "shared_vocabulary.json"
    listed.with_suffix(".txt").write_text("\n".join(WORDS) + "\n")
    listed.unlink()
    convert(directory, tmp_path / "text")
    vocabularies = [(tmp_path / n / "vocab.json").read_bytes() for n in ("json", "text")]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("version", [2, 3, 5])
def test_older_formats(tmp_path: Path, version: int) -> None:
    """Rewritten as older versions had it: the same tensors, and the settings as variables."""
    directory = write_model(tmp_path / "ct2", config={"layer_norm_epsilon": None})
    expected = read_checkpoint(directory).tensors
    (directory / "model.bin").write_bytes(older((directory / "model.bin").read_bytes(), version))
    (directory / "config.json").unlink()
    found = read_checkpoint(directory)
    for name, tensor in found.tensors.items():
        assert np.array_equal(tensor.numpy(), expected[name].numpy()), name
    assert version < 3 or found.tensors.keys() == expected.keys()


def older(data: bytes, version: int) -> bytes:
    """A version 6 file as `version` wrote it."""
    position = 4

    def take(layout: str) -> tuple[Any, ...]:
        nonlocal position
        values = struct.unpack_from(layout, data, position)
        position += struct.calcsize(layout)
        return values

    def string() -> bytes:
        (length,) = take("<H")
        return struct.pack("<H", length) + take(f"{length}s")[0]

    parts = [struct.pack("<I", version), string(), struct.pack("<I", *take("<I"))]
    (count,) = take("<I")
    parts.append(struct.pack("<I", count))
    for _ in range(count):
        name = string()
        (rank,) = take("<B")
        shape = take(f"<{rank}I")
        kind, size = take("<BI")
        width = {0: 4, 1: 1, 2: 2}[kind]
        head = (kind, size) if version >= 4 else (width, size // width)
        layout = struct.pack(f"<B{rank}IBI", rank, *shape, *head)
        parts += [name, layout, take(f"{size}s")[0]]
    return b"".join([*parts, data[position:] if version >= 3 else b""])


@pytest.mark.slow
def test_it_verifies(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "ct2", pre_norm=False, no_final_norm=True)
    convert(directory, tmp_path / "ours")
    assert verify(directory, tmp_path / "ours", Options()).holds


def test_what_cannot_be_verified_is_said(tmp_path: Path) -> None:
    """A model that the plain pass cannot compute is not said to differ."""
    directory = write_model(tmp_path / "ct2", rms_norm=True)
    convert(directory, tmp_path / "ours")
    with pytest.raises(RunError, match=r"not verified.*RMS norms"):
        verify(directory, tmp_path / "ours", Options())


def test_what_we_do_not_do_is_said(tmp_path: Path) -> None:
    for number, (settings, sentence) in enumerate(
        [
            ({"with_relative_position": True}, "relative_position_keys"),
            ({"scale": 3.0}, "multiplied by 3.0"),
            ({"activation": Activation.Tanh}, "activation 5"),
        ]
    ):
        directory = write_model(tmp_path / str(number), **settings)
        with pytest.raises(InputError, match=sentence):
            convert(directory, tmp_path / "out")
