"""The engine, with a small random model: nothing is lost, mixed up, or held up by others."""

import threading
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from mlx_transformer import load
from mlx_transformer.decoding.options import SearchOptions
from mlx_transformer.errors import InputError
from mlx_transformer.serve.engine import BusyError, Engine, Request
from mlx_transformer.serve.metrics import Metrics
from tests.decoding.random_models import ending_model
from tests.tiny_directory import write_model

SHORT = SearchOptions(max_tokens=12)
# A random model seldom ends a sentence by itself.
pytestmark = pytest.mark.filterwarnings("ignore:a translation reached its length limit")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), make=ending_model, length=9)


@pytest.fixture
def engine():
    with closing(Engine(Metrics(), queue_limit=1000)) as engine:
        yield engine


@pytest.fixture
def translator(engine, directory):
    return engine.call(lambda: load(directory)).result(60)


def texts(count: int, seed: int = 0) -> list[str]:
    r = np.random.default_rng(seed)
    return [" ".join(r.choice(WORDS, r.integers(1, 12))) for _ in range(count)]


def request(translator, *lines: str, nbest: int = 1, watcher=None) -> Request:
    plans = [translator.plan(line) for line in lines]
    return Request(translator, plans, replace(SHORT, nbest=nbest), watcher=watcher)


def test_many_clients_each_get_their_own(engine, translator, directory):
    lines = [*texts(60), "", "one. Two three. Four", "one\n\ntwo"]
    wanted = [found.text for found in load(directory).translate(lines, SHORT)]
    found: dict[int, str] = {}

    def client(first: int) -> None:
        for i in range(first, len(lines), 8):
            asked = request(translator, lines[i], nbest=1 + i % 2)
            found[i] = engine.submit(asked).result(60)[0].text

    threads = [threading.Thread(target=client, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(lines))] == wanted


def test_a_short_line_overtakes_a_long_document(engine, translator):
    document = engine.submit(request(translator, *texts(600)))
    order = []
    document.add_done_callback(lambda _: order.append("document"))
    for i in range(3):
        line = engine.submit(request(translator, f"line {i}"))
        line.add_done_callback(lambda _: order.append("line"))
        line.result(60)
    document.result(60)
    assert order == ["line"] * 3 + ["document"]


def test_a_cancelled_request_leaves(engine, translator):
    gone = engine.submit(request(translator, *texts(400)))
    engine.submit(request(translator, "one")).result(60)  # by then the other is under way
    assert gone.cancel()
    kept = engine.submit(request(translator, "two"))
    kept.result(60)
    with pytest.raises(CancelledError):
        gone.result()
    engine.call(lambda: None).result(60)
    assert engine.idle


def test_the_next_is_answered_when_all_who_waited_have_left(engine, translator):
    free = threading.Event()
    engine.call(lambda: free.wait(60))
    gone = engine.submit(request(translator, *texts(5)))
    assert gone.cancel()
    free.set()
    while not engine.idle:
        pass
    assert engine.submit(request(translator, "one")).result(60)


def test_a_full_queue_says_when_to_come_back(directory):
    with closing(Engine(Metrics(), queue_limit=20)) as engine:
        translator = engine.call(lambda: load(directory)).result(60)
        free = threading.Event()
        engine.call(lambda: free.wait(60))
        first = engine.submit(request(translator, *texts(30)))  # nothing waits: it may
        with pytest.raises(BusyError) as refused:
            engine.submit(request(translator, "one"))
        assert 1 <= refused.value.seconds <= 60
        free.set()
        assert len(first.result(60)) == 30


def test_closing_finishes_what_was_asked_for(directory):
    engine = Engine(Metrics(), queue_limit=1000)
    translator = engine.call(lambda: load(directory)).result(60)
    asked = engine.submit(request(translator, *texts(50)))
    engine.close()
    assert len(asked.result(0)) == 50


class Watched:
    """Remembers what a watcher is told."""

    def __init__(self) -> None:
        self.grown: dict[int, list[str]] = {}
        self.done: dict[int, tuple[str, str]] = {}

    def grew(self, sentence, text):
        self.grown.setdefault(sentence, []).append(text)

    def finished(self, sentence, source, translation):
        self.done[sentence] = source, translation.text


def test_a_watcher_sees_every_sentence_grow(engine, translator):
    watcher = Watched()
    text = "One two. Three four five.\nSix"
    [whole] = engine.submit(request(translator, text, watcher=watcher)).result(60)
    assert [watcher.done[i][0] for i in range(3)] == ["One two.", "Three four five.", "Six"]
    found = [watcher.done[i][1] for i in range(3)]
    assert whole.text == f"{found[0]} {found[1]}\n{found[2]}"
    for number, steps in watcher.grown.items():
        for text_so_far in steps:
            assert found[number].startswith(text_so_far)


def test_an_error_reaches_its_own_request_alone(engine, translator):
    broken = request(translator, "one")
    broken.sentences[0] = broken.sentences[0]._replace(ids=[5] * 1000)
    failed = engine.submit(broken)
    assert engine.submit(request(translator, "two")).result(60)
    with pytest.raises(InputError, match="split the text"):
        failed.result(60)
