"""What a test lacks is said; where nothing may be lacking, it fails."""

import re
from pathlib import Path

import pytest

from tests.needs import missing


def test_a_test_that_lacks_something_is_skipped_with_a_reason(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no browser"):
        missing("there is no browser")


def test_in_ci_it_fails(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is no browser, and CI skips nothing"):
        missing("there is no browser")


def test_what_the_test_tools_bring_is_not_asked_for():
    """A package that is always there cannot be the reason for a skip that nobody notices."""
    silent = re.compile(r"\bimportorskip\(")
    tests = Path(__file__).parent.rglob("*.py")
    assert [path.name for path in tests if silent.search(path.read_text("utf-8"))] == []
