"""What people type, and the codes that models know."""

import json

import pytest

from mlx_transformer.errors import InputError
from mlx_transformer.tokenizer import load_tokenizer
from mlx_transformer.tokenizer.language_names import M2M100, MBART50, NLLB
from mlx_transformer.tokenizer.languages import find_language, language_name, pair_of

OPUS = ["deu", "fra", "por", "pob", "zho_Hant", "zho_Hans"]


@pytest.mark.parametrize(
    ("typed", "codes", "code"),
    [
        ("deu_Latn", NLLB, "deu_Latn"),
        ("de", NLLB, "deu_Latn"),
        ("GERMAN", NLLB, "deu_Latn"),
        ("Deutsch", M2M100, "de"),
        ("deu", MBART50, "de_DE"),
        ("de-AT", MBART50, "de_DE"),
        ("zh", NLLB, "zho_Hans"),
        ("zh-TW", NLLB, "zho_Hant"),
        ("Traditional Chinese", OPUS, "zho_Hant"),
        ("中文", MBART50, "zh_CN"),
        ("Arabic", NLLB, "arb_Arab"),
        ("fa", NLLB, "pes_Arab"),
        ("twi", NLLB, "twi_Latn"),
        ("Norwegian", NLLB, "nob_Latn"),
        ("French", OPUS, "fra"),
        ("tyv_Cyrl", [*NLLB, "tyv_Cyrl"], "tyv_Cyrl"),
    ],
)
def test_a_language_is_found_by_any_name(typed, codes, code):
    assert find_language(typed, codes) == code


def test_every_code_of_a_model_finds_itself_and_has_a_name():
    for codes in (NLLB, M2M100, MBART50):
        for code in codes:
            assert find_language(code, codes) == code
            assert language_name(code) != code
            assert find_language(code.split("_")[0], codes).split("_")[0] == code.split("_")[0]


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("Germn", r"did you mean deu_Latn \(German\)"),
        ("frnch", r"fra_Latn \(French\)"),
        ("Klingon", "does not know the language 'Klingon'"),
        ("kas_Latn", "knows kas_Arab, kas_Deva, but not 'kas_Latn'"),
    ],
)
def test_a_wrong_one_gets_the_nearest(typed, sentence):
    with pytest.raises(InputError, match=sentence):
        find_language(typed, NLLB)


def test_another_language_is_not_taken_for_a_mistyped_one():
    with pytest.raises(InputError, match=r"does not know the language 'de'; it knows en$"):
        find_language("de", ["en"])


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("opus-mt-en-de", ("en", "de")),
        ("en-de-8bit", ("en", "de")),
        ("opus-mt-tc-big-en-fr", ("en", "fr")),
        ("nllb-200-distilled-600M", None),
        ("my-model", None),
    ],
)
def test_names_of_models_say_their_languages(name, pair):
    assert pair_of(name) == pair


# Characters and words


def test_characters_as_graphemes_and_phonemes(tmp_path):
    lists = {"graphemes": [*"____", "a", "b"], "phonemes": [*"____", "ɑ", "β"]}
    (tmp_path / "characters.json").write_text(json.dumps(lists))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart", "bos_token_id": 1}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.sources(["ab_c"], eos_id=2) == [[1, 4, 5, 3, 3, 2]]
    assert tokenizer.decode([1, 5, 4, 2, 0]) == "βɑ"


def test_a_bare_vocabulary_numbers_characters_or_words(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    for words, text, ids, back in (
        (["<pad>", "</s>", "<unk>", "a", " "], "a ab", [3, 4, 3, 2], "a a"),
        (["<pad>", "</s>", "<unk>", "ab", "c"], "c ab d", [4, 3, 2], "c ab"),
    ):
        (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.encode_source(text) == ids
        assert tokenizer.decode(ids) == back


# Tags


def test_a_text_may_bring_its_own_tag(tmp_path):
    """As OPUS-MT's users write it; every sentence of the line is then of that language."""
    from tests.tiny_directory import pieces

    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(pieces())
    words = ["</s>", "<unk>", ">>deu<<", ">>fra<<", "▁two", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="name the target language"):
        _ = tokenizer.frame
    bound, rest = tokenizer.of_tagged(">>fra<< two")
    assert rest == "two"
    assert bound.sources([rest], 0) == tokenizer.between(target="French").sources(["two"], 0)
    assert bound.frame.before == (3,)


def test_t5_prefixes_are_optional(tmp_path):
    tasks = {"translation_en_to_de": {"prefix": "translate English to German: "}}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "tokenizer_class": "ByT5Tokenizer",
                    "task_specific_params": tasks})
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path)
    plain, german = tokenizer, tokenizer.between("English", "German")
    assert bytes(i - 3 for i in plain.sources(["a"], 1)[0][:-1]) == b"a"
    assert (
        bytes(i - 3 for i in german.sources(["a"], 1)[0][:-1]) == b"translate English to German: a"
    )
    with pytest.raises(InputError, match="does not know the language 'French'"):
        tokenizer.between("English", "French")
