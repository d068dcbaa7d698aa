"""docs/paper.md: the parts that tools write, and what its programs print.

    python tools/paper_page.py

runs the programs again and writes below each what it prints.
"""

import contextlib
import io
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "paper.md"


def written(name: str) -> str:
    """What a tool wrote there."""
    return _part(name, PAGE.read_text(encoding="utf-8"))[2]


def write(name: str, body: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = _part(name, text).span(2)
    PAGE.write_text(f"{text[:begin]}\n{body.strip()}\n{text[end:]}", encoding="utf-8")


def _part(name: str, text: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name} -->\n)(.*?)(<!-- end of {name} -->)", text, re.DOTALL)
    assert found is not None, f"{PAGE} has no part {name}"
    return found


# Programs and what they print


FENCED = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


def outputs(text: str) -> list[tuple[str, str, str]]:
    """(program, what the page says it prints, what it prints), all in one session"""
    session: dict[str, object] = {}
    found = []
    for program, said in FENCED.findall(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, PAGE.name, "exec"), session)
        found.append((program, said, printed.getvalue()))
    return found


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for program, said, printed in outputs(text):
        old = f"```python\n{program}```\n```text\n{said}```\n"
        text = text.replace(old, f"```python\n{program}```\n```text\n{printed}```\n")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
