"""docs/paper.md: its programs print what it says, its sums are right, the names it links exist.

The worked examples are computed a second time here, in plain Python.
"""

import ast
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import paper_page
import pytest

ROOT = Path(__file__).parents[1]
PAGE = paper_page.PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINKS = sorted(set(re.findall(r"\[`([\w./]+)`\]\(\.\./([\w/]+\.py)\)", PAGE)))
# What the reader sees between programs, tables of tools, and headings.
PROSE = re.sub(r"```.*?```|<!-- (.*?) -->.*?<!-- end of \1 -->|^#.*?$", "", PAGE, flags=re.S | re.M)
# A sum with its result, as in "0.6 × 0.4 = 0.24".
SUMS = re.compile(
    r"(?<![\w(])((?:sqrt\()?[-\d.(][-\d.()+×/ ]*[+×/)-][-\d.()+×/ ]*?|e\^\d) =\s(-?[\d.]*\d)"
)


def test_every_program_prints_what_the_page_says() -> None:
    for program, said, printed in paper_page.outputs(PAGE):
        assert said == printed, f"run python tools/paper_page.py\n{program}"


def test_every_sum_is_right() -> None:
    found = SUMS.findall(PROSE)
    assert len(found) >= 10
    for terms, result in found:
        value = eval(terms.replace("×", "*").replace("^", "**"), {"sqrt": math.sqrt, "e": math.e})
        digits = len(result.partition(".")[2])
        assert f"{value:.{digits}f}" == result, f"{terms} = {result}"


def test_every_other_number_is_printed_or_typed_by_a_program() -> None:
    """Numbers with a decimal point; those of the paper's sections are headings or named so."""
    programs = " ".join(re.findall(r"```.*?```", PAGE, re.DOTALL))
    left = re.sub(r"https?:\S+|section \d\.\d|4\.5 million pairs", "", SUMS.sub("", PROSE))
    for number in re.findall(r"(?<![\w.^-])\d+\.\d+", left):
        assert re.search(rf"(?<![\d.]){re.escape(number)}0*(?!\d)", programs), number


@pytest.mark.parametrize(("name", "path"), LINKS, ids=lambda part: part)
def test_linked_names_exist(name: str, path: str) -> None:
    if name.endswith(".py"):
        assert name == path and (ROOT / path).is_file()
        return
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for part in name.removeprefix("device.").split("."):
        found = [node for node in body if part in names(node)]
        assert found, f"{path} has no {name}"
        body = getattr(found[0], "body", [])


def names(node: ast.stmt) -> list[str]:
    """What a statement defines: a function, a class, a constant or a field"""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [node.target.id] if isinstance(node, ast.AnnAssign) else []


@pytest.mark.slow
@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.split("\n")[0][:50])
def test_commands(block: str, tmp_path: Path) -> None:
    for folder in ("weights", "tools"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    python = shlex.quote(sys.executable)
    named = (
        f'mlx-transformer() {{ {python} -m mlx_transformer "$@"; }}; python() {{ {python} "$@"; }}'
    )
    done = subprocess.run(
        ["bash", "-e", "-c", f"{named}\n{block}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_pictures_are_there_and_small() -> None:
    shown = {ROOT / "docs" / path for path in re.findall(r"!\[.*?\]\((.*?)\)", PAGE)}
    there = set((ROOT / "docs" / "paper").iterdir())
    assert shown == there
    assert sum(path.stat().st_size for path in there) < 1_000_000


# The worked examples, by nothing but the formulas


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def attention(Q: list, K: list, V: list, *, causal: bool = False) -> list[list[float]]:
    """Equation 1"""
    found = []
    for t, q in enumerate(Q):
        seen = t + 1 if causal else len(K)
        scores = [
            sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in K[:seen]
        ]
        weights = softmax(scores)
        found.append(
            [sum(w * v[i] for w, v in zip(weights, V, strict=False)) for i in range(len(V[0]))]
        )
    return found


def printed_rows(title: str) -> list[list[list[float]]]:
    """The matrices that programs print below this title"""
    found = re.findall(rf"^{re.escape(title)}\n(\[\[.*?\]\])", PAGE, re.MULTILINE | re.DOTALL)
    rows = [re.findall(r"\[([-\d. ]+)\]", matrix) for matrix in found]
    return [[[float(number) for number in row.split()] for row in matrix] for matrix in rows]


def test_scaled_dot_product_attention() -> None:
    Q, K = [[2, 0, 0, 0], [0, 2, 0, 0], [1] * 4], [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]
    V = [[10, 0], [0, 10], [5, 5]]
    plain, masked = printed_rows("times V")
    for printed, expected in (
        (plain, attention(Q, K, V)),
        (masked, attention(Q, K, V, causal=True)),
    ):
        for row, computed in zip(printed, expected, strict=True):
            assert row == pytest.approx(computed, abs=6e-5)


def test_multi_head_attention() -> None:
    words = [[1, 0], [0, 1], [1, 1]]
    by_head = [[[word[head]] for word in words] for head in (0, 1)]
    one, two = (attention(numbers, numbers, numbers) for numbers in by_head)
    expected = [[a + b, a - b] for [a], [b] in zip(one, two, strict=True)]
    [printed] = printed_rows("Concat(heads) W^O")
    for row, computed in zip(printed, expected, strict=True):
        assert row == pytest.approx(computed, abs=6e-5)
