"""Moses words and BPE codes, beside subword-nmt and fairseq's way of joining."""

import io
from pathlib import Path

import pytest
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from mlx_transformer.tokenizer import load_tokenizer
from mlx_transformer.tokenizer.moses import Bpe, MosesBpe

TEXT = (
    "low lower lowest newer newest wider widest a well @-@ known &apos;s banana bananas aaaa " * 5
)


def learned(merges: int = 60) -> str:
    out = io.StringIO()
    learn_bpe(io.StringIO(TEXT), out, merges)
    return out.getvalue()


@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_pieces_are_those_of_subword_nmt(version: str) -> None:
    codes = learned()
    if version == "0.1":  # as it was written then: no header, the end of a word apart
        codes = "\n".join(line.replace("</w>", "") for line in codes.splitlines()[1:]) + "\n"
    theirs, ours = BPE(io.StringIO(codes)), Bpe(codes)
    words = [*TEXT.split()[:20], "unknown", "bananaaas", "lo", "x", "wide-ranging"]
    for word in words:
        assert ours.cut(word) == theirs.segment(word).split(), word


def test_counts_of_fastbpe_change_nothing() -> None:
    header, *lines = learned().splitlines()
    counted = "\n".join(f"{line} {1000 - i}" for i, line in enumerate(lines))
    for word in TEXT.split()[:20]:
        assert Bpe(counted).cut(word) == Bpe("\n".join([header, *lines])).cut(word)


def test_text_comes_back(tmp_path: Path) -> None:
    codes = learned()
    text = 'A well-known banana\'s "newest" low, 5 & 6.'
    pieces = MosesBpe(codes, "en").cut(text)
    assert "@-@" in pieces and "&amp;" in "".join(pieces).replace("@@", "")
    words = dict.fromkeys(pieces)
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    (tmp_path / "bpecodes").write_text(codes)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode_source(text)) == text


def test_codes_without_moses_cut_what_stands_between_spaces() -> None:
    codes = learned()
    text = 'a "newest" well-known  banana, lower'
    cutter = MosesBpe(codes, "en", moses=False)
    assert cutter.cut(text) == BPE(io.StringIO(codes)).process_line(text).split()
    assert cutter.join(cutter.cut(text)) == " ".join(text.split())
