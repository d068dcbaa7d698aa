"""Does any test sentence occur in the training text? Compared in lower case, without punctuation.

    python tools/overlap.py --train data/general-en-de/*.en --test data/tatoeba-en-de/test.en

Each language is compared with its own files. Prints how many lines of each test file occur, and
ends with 1 if any does.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

NO_LETTER_OR_DIGIT = re.compile(r"[\W_]+")


def plain(line: str) -> str:
    """Letters and digits alone, so that a changed comma hides no copy."""
    return NO_LETTER_OR_DIGIT.sub(" ", line.lower()).strip()


def plain_lines(path: Path) -> list[str]:
    return [plain(line) for line in path.read_text(encoding="utf-8").split("\n") if plain(line)]


def occurring(train: Iterable[Path], tests: Iterable[Path]) -> dict[Path, list[str]]:
    """By test file, its sentences that some training file has too."""
    sentences = {path: set(plain_lines(path)) for path in tests}
    wanted = set().union(*sentences.values())
    seen: set[str] = set()
    for path in train:
        seen |= wanted.intersection(plain_lines(path))
    return {path: sorted(lines & seen) for path, lines in sentences.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--test", nargs="+", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    found = occurring(args.train, args.test)
    for path, sentences in found.items():
        example = f", such as: {sentences[0]}" if sentences else ""
        print(f"{path}: {len(sentences)} of its sentences are in the training text{example}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
