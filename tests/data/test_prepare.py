"""Raw text to prepared ids: what is kept, what is dropped and said, and nothing half-made."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlx_transformer.data import prepare as preparation
from mlx_transformer.data import subwords
from mlx_transformer.data.corpus import ParallelCorpus
from mlx_transformer.data.prepare import prepare, prepared
from mlx_transformer.data.text import count_lines
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import Recipe, load_recipe
from mlx_transformer.tokenizer import load_tokenizer

SOURCE = [f"number {i} and some more words" for i in range(300)]
TARGET = [f"Nummer {i} und noch mehr Wörter" for i in range(300)]


@pytest.fixture
def text(tmp_path) -> Callable[..., Recipe]:
    """Write files and return a recipe for them."""

    def write(
        source: list[str] | bytes, target: list[str] | bytes, *overrides: str, split: str = "train"
    ) -> Recipe:
        for language, lines in (("en", source), ("de", target)):
            if isinstance(lines, list):
                lines = "".join(line + "\n" for line in lines).encode()
            path = tmp_path / f"{split}.{language}"
            if not path.exists() or path.read_bytes() != lines:
                path.write_bytes(lines)
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(
            '[data]\nsource_language = "en"\ntarget_language = "de"\ntrain = "train"\n'
            '[tokenizer]\nvocab_size = 60\n[model]\npreset = "tiny"\n'
        )
        return load_recipe(recipe, overrides)

    return write


def test_ids_are_those_of_the_tokenizer(text, tmp_path):
    report = prepare(text(SOURCE, TARGET), tmp_path / "out")
    corpus = ParallelCorpus.open(tmp_path / "out", "train")
    tokenizer = load_tokenizer(tmp_path / "out")
    assert len(corpus) == report.splits["train"].pairs == 300
    assert corpus.source_vocab_size == tokenizer.source_vocab_size == 60
    for i in range(300):
        assert corpus.source[i].tolist() == tokenizer.encode_source(SOURCE[i])
        assert tokenizer.decode(corpus.target[i]) == TARGET[i]
    assert corpus.source.lengths().tolist() == [len(corpus.source[i]) for i in range(300)]
    assert report.splits["train"].source_tokens == corpus.source.lengths().sum()
    assert report.splits["train"].dropped == {}


def test_two_vocabularies(text, tmp_path):
    prepare(text(SOURCE, TARGET, "tokenizer.joint=false"), tmp_path / "out")
    tokenizer = load_tokenizer(tmp_path / "out")
    assert set(tokenizer.files) == {"source.model", "target.model"}
    assert tokenizer.encode_source(SOURCE[0]) != tokenizer.encode_target(SOURCE[0])


def test_a_large_vocabulary_takes_wider_ids(text, tmp_path, monkeypatch):
    narrow = prepare(text(SOURCE, TARGET), tmp_path / "narrow")
    monkeypatch.setattr(preparation, "id_dtype", lambda size: np.dtype(np.uint32))
    wide = prepare(text(SOURCE, TARGET), tmp_path / "wide")
    assert narrow == wide
    one, other = (ParallelCorpus.open(tmp_path / name, "train") for name in ("narrow", "wide"))
    assert (one.source.ids.dtype, other.source.ids.dtype) == (np.uint16, np.uint32)
    assert [ids.tolist() for ids in one.source] == [ids.tolist() for ids in other.source]


def test_several_corpora_follow_each_other(text, tmp_path):
    text(SOURCE[:100], TARGET[:100], split="more")
    recipe = text(SOURCE, TARGET, f'data.train=["{tmp_path}/train", "{tmp_path}/more"]')
    assert prepare(recipe, tmp_path / "out").splits["train"].pairs == 400
    corpus = ParallelCorpus.open(tmp_path / "out", "train")
    assert np.array_equal(corpus.target[300], corpus.target[0])


def test_chunks_do_not_show(text, tmp_path, monkeypatch):
    whole = prepare(text(SOURCE, TARGET), tmp_path / "whole")
    monkeypatch.setattr(preparation, "CHUNK", 7)
    chunked = prepare(text(SOURCE, TARGET), tmp_path / "chunked")
    assert chunked == whole
    for name in ("train.source.ids", "train.target.offsets"):
        assert (tmp_path / "whole" / name).read_bytes() == (
            tmp_path / "chunked" / name
        ).read_bytes()


def test_progress_ends_where_it_says(text, tmp_path):
    seen: dict[str, list[int]] = {}
    recipe = text(SOURCE, TARGET)
    prepare(recipe, tmp_path / "out", progress=lambda s, d, t: seen.setdefault(s, []).append(d))
    assert list(seen) == ["read", "learn the vocabulary", "encode train"]
    assert all(steps == sorted(steps) and steps[-1] == 300 for steps in seen.values())


def test_a_large_corpus_is_sampled_for_the_vocabulary(text, tmp_path, monkeypatch):
    learned: list[str] = []
    learn = subwords.learn
    monkeypatch.setattr(subwords, "MAX_SENTENCES", 120)
    monkeypatch.setattr(
        subwords, "learn", lambda lines, *rest: learn(learned.extend(lines) or learned, *rest)
    )
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    assert learned == [line for pair in zip(SOURCE[::5], TARGET[::5], strict=True) for line in pair]


# What is dropped, and what is said about it


def test_bad_pairs_are_dropped_and_counted(text, tmp_path):
    source = [*SOURCE, "", "  ", "long " * 100, "a", "some words here"]
    target = [*TARGET, "leer", "leer", "lang " * 100, "sehr viele Wörter " * 5, "\t"]
    recipe = text(source, target, "data.max_length=100", "data.max_ratio=4")
    report = prepare(recipe, tmp_path / "out").splits["train"]
    assert report.pairs == 300
    assert report.dropped == {"empty": 3, "too long": 1, "badly proportioned": 1}


def test_lengths_count_the_end_token(text, tmp_path):
    """A sentence of max_length - 1 pieces stays, one of max_length pieces goes."""
    prepare(text(SOURCE, TARGET), tmp_path / "all")
    corpus = ParallelCorpus.open(tmp_path / "all", "train")
    longest = np.maximum(corpus.source.lengths(), corpus.target.lengths())
    limit = int(longest.max())
    report = prepare(text(SOURCE, TARGET, f"data.max_length={limit}"), tmp_path / "cut")
    assert report.splits["train"].dropped == {"too long": int((longest == limit).sum())}
    report = prepare(text(SOURCE, TARGET, f"data.max_length={limit + 1}"), tmp_path / "uncut")
    assert report.splits["train"].dropped == {}


def test_text_to_score_against_keeps_its_lines_and_its_proportions(text, tmp_path):
    source = ["one word", "", "a line\u2028separator", "long " * 300]
    target = ["ein Wort und noch mehr Wörter", "leer", "ein Trenner", "lang"]
    text(source, target, split="valid")
    recipe = text(SOURCE, TARGET, f"data.valid={tmp_path}/valid", "data.max_ratio=1.01")
    report = prepare(recipe, tmp_path / "out").splits["valid"]
    assert report.dropped == {"empty": 1, "too long": 1}
    corpus = ParallelCorpus.open(tmp_path / "out", "valid")
    assert corpus.source_lines == [source[0], source[2]]
    assert corpus.target_lines == [target[0], target[2]]
    assert len(corpus) == 2


def test_a_split_the_recipe_has_not_is_empty(text, tmp_path):
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    assert len(ParallelCorpus.open(tmp_path / "out", "test")) == 0


def test_invalid_utf8_is_dropped_with_its_line(text, tmp_path):
    source = "\n".join(SOURCE).encode().replace(b"number 17 ", b"number \xff\xfe ")
    target = "\n".join(TARGET).encode().replace(b"Nummer 250 ", b"Nummer \xc3\x28 ")
    report = prepare(text(source, target), tmp_path / "out").splits["train"]
    assert report.pairs == 298
    assert report.dropped == {"invalid UTF-8": 2}
    assert report.invalid_lines == [
        f"{tmp_path / 'train.en'} line 18",
        f"{tmp_path / 'train.de'} line 251",
    ]


def test_line_ends_and_byte_order_marks_are_no_text(text, tmp_path):
    source = b"\xef\xbb\xbf" + "\r\n".join(SOURCE).encode()
    target = "\n".join(TARGET).encode()
    prepare(text(source, target), tmp_path / "windows")
    prepare(text(SOURCE, TARGET), tmp_path / "unix")
    for name in ("train.source.ids", "tokenizer.model"):
        assert (tmp_path / "windows" / name).read_bytes() == (tmp_path / "unix" / name).read_bytes()


def test_strange_characters_are_text(text, tmp_path):
    strange = ["NUL \0 here", "😀 emoji", "\u202eright to left שלום", "bell \a", "a\x85b\x1cc"]
    report = prepare(text(SOURCE + strange, TARGET + strange), tmp_path / "out").splits["train"]
    assert report.pairs == 305


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (SOURCE, TARGET[:-1], "train.en has 300 lines but {}train.de has 299"),
        ([], [], "train.en and {}train.de are empty"),
        (["one line"], ["eine Zeile"], "the largest possible is"),
        ([""] * 300, [""] * 300, "the training text is empty"),
        (["\0"] * 3, ["\0"] * 3, "the largest possible is"),
        (b"\xff\n" * 9, b"\xff\n" * 9, "the training text is empty or not UTF-8"),
        ("a\nb\n".encode("utf-16"), ["a", "b"], "train.en is UTF-16"),
    ],
)
def test_unusable_text_is_a_sentence_and_leaves_nothing(text, tmp_path, source, target, words):
    with pytest.raises(InputError) as error:
        prepare(text(source, target), tmp_path / "out")
    assert words.format(f"{tmp_path}/") in str(error.value)
    assert {p.name for p in tmp_path.iterdir()} == {"recipe.toml", "train.en", "train.de"}


def test_nothing_left_is_said_with_the_reasons(text, tmp_path):
    with pytest.raises(InputError, match="no training pair is left: 300 too long"):
        prepare(text(SOURCE, TARGET, "data.max_length=2"), tmp_path / "out")


def test_a_missing_file_is_said(text, tmp_path):
    recipe = text(SOURCE, TARGET)
    (tmp_path / "train.de").unlink()
    with pytest.raises(InputError, match=f"no file {tmp_path}/train.de"):
        prepare(recipe, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "lines"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2)]
)
def test_lines_are_counted_as_they_are_read(tmp_path, content, lines):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert count_lines(path) == lines == len(path.open("rb").readlines())


# Once, and whole


def test_it_is_done_once(text, tmp_path):
    recipe = text(SOURCE, TARGET)
    first = prepare(recipe, tmp_path / "out")
    stamp = (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns
    again = prepare(recipe, tmp_path / "out")
    assert (first.reused, again.reused) == (False, True)
    assert again.splits == first.splits
    assert (tmp_path / "out" / "train.source.ids").stat().st_mtime_ns == stamp
    assert prepared(tmp_path / "out") == again
    assert prepared(tmp_path) is None


@pytest.mark.parametrize("change", ["tokenizer.vocab_size=59", "data.max_length=99"])
def test_it_is_done_again_for_another_recipe(text, tmp_path, change):
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    assert not prepare(text(SOURCE, TARGET, change), tmp_path / "out").reused
    assert prepare(text(SOURCE, TARGET, change, "training.max_steps=1"), tmp_path / "out").reused


def test_it_is_done_again_for_other_text(text, tmp_path):
    recipe = text(SOURCE, TARGET)
    prepare(recipe, tmp_path / "out")
    text(SOURCE[1:], TARGET[1:])
    os.utime(tmp_path / "train.en", (1, 1))
    report = prepare(recipe, tmp_path / "out")
    assert (report.reused, report.splits["train"].pairs) == (False, 299)
    assert not (tmp_path / ".out.old").exists()


def test_a_given_tokenizer_is_used(text, tmp_path):
    prepare(text(SOURCE, TARGET, "tokenizer.vocab_size=50"), tmp_path / "first")
    tokenizer = load_tokenizer(tmp_path / "first")
    recipe = text(SOURCE, TARGET)
    report = prepare(recipe, tmp_path / "second", tokenizer)
    assert report.source_vocab_size == 50
    assert load_tokenizer(tmp_path / "second").files == tokenizer.files
    assert prepare(recipe, tmp_path / "second", tokenizer).reused
    assert not prepare(recipe, tmp_path / "second").reused


def test_a_directory_of_something_else_is_left_alone(text, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is no prepared data: choose another place"):
        prepare(text(SOURCE, TARGET), tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_an_empty_directory_is_filled(text, tmp_path):
    (tmp_path / "out").mkdir()
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    assert len(ParallelCorpus.open(tmp_path / "out", "train")) == 300


def test_a_failed_preparation_leaves_the_old_one(text, tmp_path):
    prepare(text(SOURCE, TARGET), tmp_path / "out")

    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("encode"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(text(SOURCE, TARGET, "tokenizer.vocab_size=50"), tmp_path / "out", progress=stop)
    assert prepare(text(SOURCE, TARGET), tmp_path / "out").reused
    assert not (tmp_path / ".out.partial").exists()


def test_what_a_killed_preparation_left_is_cleared_away(text, tmp_path):
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    for name in (".out.partial", ".out.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.source.ids").write_bytes(b"half")
    prepare(text(SOURCE[:-1], TARGET[:-1]), tmp_path / "out")
    assert len(ParallelCorpus.open(tmp_path / "out", "train")) == 299
    assert not (tmp_path / ".out.partial").exists()
    assert not (tmp_path / ".out.old").exists()


@pytest.mark.parametrize("name", ["prepared.json", "train.source.ids", "train.target.offsets"])
def test_damage_is_noticed(text, tmp_path, name):
    prepare(text(SOURCE, TARGET), tmp_path / "out")
    path = tmp_path / "out" / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=f"the prepared data in {tmp_path}/out is damaged"):
        ParallelCorpus.open(tmp_path / "out", "train")


def test_opening_what_is_not_prepared(tmp_path):
    with pytest.raises(InputError, match="holds no prepared data"):
        ParallelCorpus.open(tmp_path, "train")


PEAK_MEMORY = """
import sys; from pathlib import Path
from mlx_transformer.data import prepare, subwords
from mlx_transformer.recipes import load_recipe
prepare.CHUNK, subwords.MAX_SENTENCES = 1000, 2000
prepare.prepare(load_recipe(sys.argv[1]), Path(sys.argv[2]))
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(text, tmp_path):
    """Ten times the text takes no more memory."""
    peaks = []
    for copies in (20, 200):
        text(SOURCE * copies, TARGET * copies)
        line = [sys.executable, "-c", PEAK_MEMORY, tmp_path / "recipe.toml", tmp_path / "out"]
        peaks.append(int(subprocess.run(line, capture_output=True, check=True).stdout))
    assert peaks[1] < 1.05 * peaks[0], peaks


# The command


def command(*arguments: object, where: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mlx_transformer", "prepare", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=where)


def test_the_command_says_what_it_did(text, tmp_path):
    text([*SOURCE, ""], [*TARGET, "leer"])
    done = command("recipe.toml", "--out", "out", where=tmp_path)
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "train: 300 pairs" in done.stderr
    assert "1 empty" in done.stderr
    assert "shapes" in done.stderr
    again = command("recipe.toml", "--out", "out", where=tmp_path)
    assert "prepared before" in again.stderr


def test_the_command_fails_with_a_sentence(text, tmp_path):
    text(SOURCE, TARGET[:-1])
    failed = command("recipe.toml", "--out", "out", where=tmp_path)
    assert failed.returncode == 2
    assert "has 300 lines but" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_the_command_names_a_place_it_cannot_write(text, tmp_path):
    text(SOURCE, TARGET)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    failed = command("recipe.toml", "--out", locked / "out", where=tmp_path)
    assert failed.returncode == 1
    assert "Permission denied" in failed.stderr
    shutil.rmtree(locked)


def test_text_in_another_encoding_is_refused(tmp_path):
    german = ["Ein Satz.", "Noch ein Satz.", "Schöne Grüße!"] * 9
    (tmp_path / "train.de").write_bytes("\n".join(german).encode("latin-1"))
    (tmp_path / "train.en").write_text("\n".join(["A sentence."] * 27))
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f"[data]\ndir = '{tmp_path}'\nsource_language = 'en'\ntarget_language = 'de'\n"
        "train = 'train'\n[tokenizer]\nvocab_size = 40\n"
    )
    with pytest.raises(InputError, match=r"9 training pairs are not UTF-8 .*train.de.*3.*iconv"):
        prepare(load_recipe(recipe), tmp_path / "out")
