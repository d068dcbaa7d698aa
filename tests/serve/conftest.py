"""One server with one model that ships, for all tests of a run."""

from collections.abc import Iterator

import pytest

from tests.serve.running import Running, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running("--model", "en-de=weights/en-de") as server:
        yield server
