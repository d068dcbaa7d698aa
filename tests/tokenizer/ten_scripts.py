"""Made-up text in ten scripts: words of random letters, with numbers and signs between them."""

import random
from functools import cache

LETTERS = {
    "Latin": "abcdefghijklmnopqrstuvwxyzäöüßéàñçøžłő",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшщыьэюяїє",
    "Greek": "αβγδεζηθικλμνξοπρστυφχψωάέήίόύώ",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويةى",
    "Hebrew": "אבגדהוזחטיכלמנסעפצקרשתםןץ",
    "Devanagari": "कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौंः्",
    "Thai": "กขคงจฉชซญดตถทธนบปผพฟภมยรลวสหอะาิีุูเแโใไ่้",
    "Han": "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年",
    "Kana": "あいうえおかきくけこさしすせそたちつてとなにぬねのアイウエオカキクケコ",
    "Hangul": "가나다라마바사아자차카타파하고노도로모보소오조초코토포호기니디리",
}
UNSPACED = ("Thai", "Han", "Kana")


@cache
def lines(count: int = 1000, seed: int = 0) -> list[str]:
    """The scripts in turn; each line of several words."""
    rng = random.Random(seed)
    words = {s: [_word(rng, letters) for _ in range(60)] for s, letters in LETTERS.items()}
    scripts = list(LETTERS)
    return [_line(rng, words, scripts[i % len(scripts)]) for i in range(count)]


def _word(rng: random.Random, letters: str) -> str:
    return "".join(rng.choices(letters, k=rng.randint(1, 7)))


def _line(rng: random.Random, words: dict[str, list[str]], script: str) -> str:
    chosen = [rng.choice(words[script]) for _ in range(rng.randint(1, 12))]
    if rng.random() < 0.2:
        chosen.insert(rng.randrange(len(chosen)), str(rng.randint(0, 99_999)))
    if rng.random() < 0.2:  # a foreign word in between
        chosen.append(rng.choice(words[rng.choice(list(LETTERS))]))
    text = ("" if script in UNSPACED else " ").join(chosen)
    return text.capitalize() + rng.choice(["", ".", "!", "?", ";"])
