"""Text to ids and back, for each kind of tokenizer files."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from mlx_transformer.config import ModelConfig
from mlx_transformer.data import numbers, subwords
from mlx_transformer.errors import InputError
from mlx_transformer.recipes import TokenizerConfig
from mlx_transformer.tokenizer import load_tokenizer, sentencepiece_tokenizer
from mlx_transformer.tokenizer.listed import is_special, read_list, special_ids

PAIRS = numbers.pairs("valid")


@pytest.fixture(scope="module")
def models() -> dict[str, bytes]:
    """Small SentencePiece models of English, German and both."""
    lines = {
        "source": [source for source, _ in PAIRS],
        "target": [target for _, target in PAIRS],
        "joint": [line for pair in PAIRS for line in pair],
    }
    config = TokenizerConfig(vocab_size=120)
    return {name: subwords.learn(text, config) for name, text in lines.items()}


@pytest.fixture(scope="module", params=["joint", "pair", "marian", "fairseq", "fairseq words"])
def directory(request, models, tmp_path_factory):
    """A directory of each kind."""
    folder = tmp_path_factory.mktemp("tokenizer")
    joint = SentencePieceProcessor(model_proto=models["joint"])
    pieces = [joint.id_to_piece(i) for i in range(4, joint.vocab_size())]
    if request.param == "joint":
        (folder / "tokenizer.model").write_bytes(models["joint"])
    elif request.param == "pair":
        (folder / "source.model").write_bytes(models["source"])
        (folder / "target.model").write_bytes(models["target"])
    elif request.param == "marian":
        (folder / "source.spm").write_bytes(models["joint"])
        (folder / "target.spm").write_bytes(models["joint"])
        words = ["</s>", "<unk>", ">>de<<", *pieces, "<pad>"]
        (folder / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    elif request.param == "fairseq":
        (folder / "sentencepiece.bpe.model").write_bytes(models["joint"])
        (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    else:
        words = dict.fromkeys(word for pair in PAIRS for text in pair for word in text.split())
        (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    return folder


def test_text_comes_back(directory):
    tokenizer = load_tokenizer(directory)
    for _, target in PAIRS[:100]:
        ids = tokenizer.encode_target(target)
        assert tokenizer.decode(ids) == target
        assert all(0 <= i < tokenizer.target_vocab_size for i in ids)
    source = PAIRS[0][0]
    ids = tokenizer.encode_source(source)
    assert "".join(tokenizer.source.tokens(ids)).replace("▁", " ").strip() == source
    assert all(0 <= i < tokenizer.source_vocab_size for i in ids)


def test_a_batch_is_its_sentences(directory):
    tokenizer = load_tokenizer(directory)
    texts = [source for source, _ in PAIRS[:50]] + ["", "😀"]
    batch = tokenizer.encode_source_batch(texts)
    assert batch == [tokenizer.encode_source(text) for text in texts]
    batch = tokenizer.encode_target_batch(texts)
    assert batch == [tokenizer.encode_target(text) for text in texts]
    assert tokenizer.decode_batch(batch) == [tokenizer.decode(ids) for ids in batch]


def test_saved_and_loaded_it_is_the_same(directory, tmp_path):
    tokenizer = load_tokenizer(directory)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in directory.iterdir()}
    assert again.files == tokenizer.files
    assert again.encode_source("forty-two") == tokenizer.encode_source("forty-two")


def test_words_start_with_a_mark(directory):
    tokenizer = load_tokenizer(directory)
    tokens = tokenizer.source.tokens(tokenizer.encode_source("two thousand seventy-one"))
    assert "".join(tokens) == "▁two▁thousand▁seventy-one"


def test_an_unknown_word_is_the_unknown_id(directory):
    tokenizer = load_tokenizer(directory)
    assert tokenizer.unk_id in tokenizer.encode_source("😀")
    assert tokenizer.unk_id in tokenizer.encode_target("Ж")


@given(st.text(st.characters(categories=None)))
def test_no_text_is_refused(directory, text):
    """Any code points: control characters, NUL, lone surrogates, right to left."""
    tokenizer = load_tokenizer(directory)
    ids = tokenizer.encode_target(text)
    tokenizer.encode_source(text)
    assert len(tokenizer.target.tokens(ids)) == len(ids)
    tokenizer.decode(ids).encode("utf-8")


@given(st.lists(st.integers(-5, 10_000)))
def test_no_ids_are_refused(directory, ids):
    tokenizer = load_tokenizer(directory)
    assert len(tokenizer.source.tokens(ids)) == len(tokenizer.target.tokens(ids)) == len(ids)
    tokenizer.decode(ids)


def test_an_id_that_the_model_has_not_is_refused(directory):
    tokenizer = load_tokenizer(directory)
    most = max(tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    end = {"eos_id": tokenizer.target.id_of("</s>"), "start_id": 3}
    load_tokenizer(directory, ModelConfig(vocab_size=most, **end))
    sizes = {"vocab_size": tokenizer.source_vocab_size, "shared_embeddings": False, **end}
    with pytest.raises(InputError, match="do not belong together"):
        load_tokenizer(directory, ModelConfig(vocab_size=tokenizer.source_vocab_size - 1, **end))
    with pytest.raises(InputError, match=r"ends a sentence with id \d, but the model with 3"):
        load_tokenizer(directory, ModelConfig(vocab_size=most, eos_id=3))
    with pytest.raises(InputError, match=r"the target tokenizer in .* has ids up to"):
        load_tokenizer(
            directory, ModelConfig(**sizes, target_vocab_size=tokenizer.target_vocab_size - 1)
        )


def test_our_special_ids(models):
    tokenizer = sentencepiece_tokenizer(models["joint"])
    assert tokenizer.source.tokens([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = tokenizer.encode_target("zwei")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "zwei"
    # Special tokens spelled out in a text are text.
    assert not {0, 1, 2} & set(tokenizer.encode_source("<pad> <s> </s>"))


def test_a_lone_surrogate_is_a_replacement_character(models):
    tokenizer = sentencepiece_tokenizer(models["joint"])
    assert tokenizer.encode_source("one \ud83d two") == tokenizer.encode_source("one � two")
    # Two halves of one character, as JSON may deliver it, are that character.
    assert tokenizer.encode_source("\ud83d\ude00") == tokenizer.encode_source("😀")


# fairseq


def test_fairseq_ids_follow_the_four_special_ones(tmp_path):
    words = "the 90\nca@@ 80\nt 70\n" + "madeupword0000 0\n"
    (tmp_path / "dict.txt").write_text(words)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.source_vocab_size == 8
    assert tokenizer.encode_source(" the  ca@@ t dog ") == [4, 5, 6, 3]
    assert tokenizer.decode([0, 4, 5, 6, 2, 1, 1]) == "the cat"
    assert tokenizer.decode([4, 5]) == "the ca"
    assert tokenizer.target.tokens([4, 5, 6, 4, 2]) == ["▁the", "▁ca", "t", "▁the", "▁</s>"]


def test_fairseq_sides_have_dictionaries_of_their_own(tmp_path):
    (tmp_path / "dict.source.txt").write_text("one 5\ntwo 4\n")
    (tmp_path / "dict.target.txt").write_text("zwei 5\r\neins 4 #fairseq:overwrite\r\nx 1\r\n")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.source_vocab_size, tokenizer.target_vocab_size) == (6, 7)
    assert tokenizer.encode_source("one two") == [4, 5]
    assert tokenizer.encode_target("eins zwei") == [5, 4]
    assert tokenizer.decode([4, 5]) == "zwei eins"


# Marian


def test_marian_language_tags_are_pieces(tmp_path, models):
    (tmp_path / "source.spm").write_bytes(models["source"])
    (tmp_path / "target.spm").write_bytes(models["target"])
    words = ["</s>", "<unk>", ">>de<<", "▁two", "▁zwei", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode_source(">>de<< two") == [2, 3]
    assert tokenizer.encode_source(">>xx<< two") == [1, 3]
    assert tokenizer.decode([5, 4, 0, 5]) == "zwei"


# Mistakes


def test_no_tokenizer_is_said(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path)) + " has no tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_damaged_model_is_said(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(InputError, match=f"a SentencePiece model in {tmp_path} is damaged"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content", ["[1]", "{", '{"a": "b", "<unk>": 1}', '{"a": 0}', '{"<unk>": -1}']
)
def test_a_damaged_vocabulary_is_said(tmp_path, models, content):
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(models["joint"])
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(InputError, match=r"vocab\.json (must|is not valid JSON)"):
        load_tokenizer(tmp_path)


def test_sulphur_in_brackets_is_an_atom_and_no_start(tmp_path):
    words = ["<unk>", "<pad>", "<s>", "</s>", "[nH]", "[S]", "[CLS]"]
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    vocab = read_list(tmp_path / "vocab.json")
    assert special_ids(vocab) == {"unknown": 0, "pad": 1, "start": 2, "end": 3}
    assert [word for word in words if not is_special(word)] == ["[nH]", "[S]"]


@pytest.mark.parametrize("content", ["[1, 2]", '["a", 2]', "[]", "{}", '{"a": -1}', '"a"', "3"])
def test_a_list_that_is_none_of_words_is_refused(tmp_path, content):
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(InputError, match=r"vocab\.json must be a JSON list of words"):
        read_list(tmp_path / "vocab.json")


@pytest.mark.parametrize("odd", ["size", "-1", "1.5", "", "1234567890"])
def test_an_id_that_is_none_is_said(tmp_path, odd):
    (tmp_path / "vocab.json").write_text(json.dumps({"0": "<pad>", "1": "a", odd: "b"}))
    with pytest.raises(InputError, match=rf"vocab\.json numbers words, but '{odd}' is no id"):
        read_list(tmp_path / "vocab.json")


@pytest.mark.parametrize("ids", ["abc", [1.5], [-1], [True], None, {"1": 1}, 3])
def test_a_frame_of_anything_but_ids_is_refused(tmp_path, models, ids):
    (tmp_path / "tokenizer.model").write_bytes(models["joint"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"frame": {"before": ids}}))
    with pytest.raises(InputError, match=r"frame in tokenizer_config\.json must be") as refused:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("content", ['["a"], "b": 1', '["a"', ""])
def test_a_list_is_one_json_value(tmp_path, content):
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(InputError, match=r"vocab\.json is not valid JSON"):
        read_list(tmp_path / "vocab.json")
