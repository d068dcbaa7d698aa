"""LibreTranslate's API as its clients use it, on a real server with the model that ships."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from mlx_transformer import load
from mlx_transformer.__main__ import main
from mlx_transformer.cli.serve import logger
from tests.serve.running import running

TEXT = "Good morning. Where is the train station?\n\nI like red apples."


@pytest.fixture(scope="module")
def translator():
    return load()


def test_the_python_client_works_unchanged(server, translator):
    client = LibreTranslateAPI(server.address)
    assert client.translate(TEXT, "en", "de") == translator.translate(TEXT).text
    assert client.translate("Wo ist Tom?", "auto", "de") == "Wo ist Tom?"
    assert [each["code"] for each in client.languages()] == ["de", "en"]
    assert client.detect("Where is the train station?")[0]["language"] == "en"


def test_a_form_and_json_ask_for_the_same(server, translator):
    wanted = {"translatedText": translator.translate(TEXT).text}
    values = {"q": TEXT, "source": "en", "target": "de"}
    post = server.client.post
    assert post("/translate", json=values).json() == wanted
    assert post("/translate", data=values).json() == wanted
    assert post("/translate", files={k: (None, v) for k, v in values.items()}).json() == wanted
    assert post("/translate", params=values).json() == wanted


def test_a_list_gives_lists(server, translator):
    q = ["Good morning.", "", "Where is Tom?"]
    answer = server.translate(q, source="auto", alternatives=2).json()
    assert answer["translatedText"] == [each.text for each in translator.translate(q)]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en"] * 3
    ranked = translator.translate(q[0], nbest=3)
    assert answer["alternatives"][0] == [each.text for each in ranked.alternatives]
    assert [len(each) for each in answer["alternatives"]] == [2, 0, 2]


def test_html_keeps_its_tags_around_the_right_words(server, translator):
    q = 'She has a <b class="x">dog</b>.<br><p>Where is <a href="/?a=1&amp;b">Tom</a> &lt; 2?'
    found = server.translate(q, format="html").json()["translatedText"]
    plain, second = re.sub("<b .*?>|</b>|<a .*?>|</a>", "", found).split("<br><p>")
    assert plain == translator.translate("She has a dog.").text
    alone = translator.translate("Where is Tom < 2?").text
    assert unescape(second).split() == alone.split()
    assert (
        re.search(r'<b class="x">\w[^<]*</b>', found) and '<a href="/?a=1&amp;b">Tom</a>' in found
    )
    assert "<" not in second


def test_html_has_alternatives_too(server, translator):
    answer = server.translate("<p>Good <b>morning</b>.</p>", format="html", alternatives=3).json()
    texts = [answer["translatedText"], *answer["alternatives"]]
    plain = [re.sub("<.*?>", "", text) for text in texts]
    best = translator.translate("Good morning.", nbest=4)
    assert plain == [each.text for each in [best, *best.alternatives]]
    assert all(text.count("<b>") == text.count("</b>") == 1 for text in texts)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"q": ""}, 400, "Invalid request: missing q parameter"),
        ({"q": []}, 400, "Invalid request: missing q parameter"),
        ({"q": [1]}, 400, "Invalid request: q parameter is not a string or a list of strings"),
        ({"q": "x" * 50_001}, 400, "Invalid request: request (50001) exceeds text limit (50000)"),
        ({"q": ["x"] * 257}, 400, "Invalid request: request (257) exceeds text limit (256)"),
        ({"source": None}, 400, "Invalid request: missing source parameter"),
        ({"target": ""}, 400, "Invalid request: missing target parameter"),
        ({"target": "xx"}, 400, "xx is not supported"),
        ({"target": "../../etc"}, 400, "../../etc is not supported"),
        (
            {"source": "de", "target": "en"},
            400,
            "English (en) is not available as a target language from German (de)",
        ),
        ({"format": "pdf"}, 400, "pdf format is not supported"),
        ({"alternatives": "many"}, 400, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": 10}, 400, "Invalid request: alternatives parameter must be <= 9"),
    ],
)
def test_errors_have_libretranslates_form(server, change, status, message):
    answer = server.translate(**{"q": "Hello.", **change})
    assert (answer.status_code, answer.json()) == (status, {"error": message})


def test_other_routes(server):
    get = server.client.get
    assert get("/health").json() == {"status": "ok"}
    assert get("/languages").json()[1] == {
        "code": "en",
        "name": "English",
        "targets": ["de", "en"],
    }
    settings = get("/frontend/settings").json()
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert (settings["keyRequired"], settings["charLimit"]) == (False, 50_000)
    assert get("/nothing").json() == {"error": "Not Found"}
    lines = get("/metrics").text.splitlines()
    assert 'mlx_transformer_requests_total{path="/health",status="200"} 1' in lines


def test_words_are_streamed_as_they_become_certain(server, translator):
    values = {"q": TEXT, "source": "auto", "target": "de"}
    with server.client.stream("POST", "/stream", json=values) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(answer.iter_text()).strip().split("\n\n")
    events = [(block.split("\n")[0][7:], json.loads(block.split("data: ")[1])) for block in blocks]
    assert events[0][0] == "start" and events[0][1]["detectedLanguage"]["language"] == "en"
    assert events[0][1]["lines"] == [2, 0, 1]
    assert events[-1] == ("done", {"translatedText": translator.translate(TEXT).text})
    sentences = [data for name, data in events if name == "sentence"]
    for sentence in sentences:
        pieces = [
            data["text"]
            for name, data in events
            if name == "piece" and data["sentence"] == sentence["sentence"]
        ]
        assert "".join(pieces) == sentence["text"] == " ".join(sentence["words"])
        alone = translator.translate(sentence["source"], attention=True)
        assert sentence["alignment"] == [list(link) for link in alone.alignment]
    assert len(sentences) == 3


@pytest.mark.slow
def test_a_key_a_rate_and_two_models_in_a_row(tmp_path):
    """en-de-fr with the shipped model twice: what matters is that the second one is asked."""
    shipped = "weights/en-de"
    arguments = ["--model", f"en-de={shipped}", "--model", f"de-fr={shipped}"]
    with running(*arguments, "--api-key", "säsam", "--rate-limit", "9") as server:
        assert server.translate("Hello.").status_code == 403
        assert server.translate("Hello.", api_key="sesam").json() == {"error": "Invalid API key"}
        answer = server.translate("Hello.", target="fr", api_key="säsam")
        twice = load(shipped).translate(load(shipped).translate("Hello.").text).text
        assert answer.json() == {"translatedText": twice}
        html = server.translate("<b>Hello</b>.", target="fr", api_key="säsam", format="html")
        assert "<b>" in html.json()["translatedText"]
        values = {"q": "Hello.", "source": "en", "target": "fr", "api_key": "säsam"}
        told = server.client.post("/stream", json=values).text
        assert json.dumps({"translatedText": twice}) in told
        assert '"source": ""' in told  # words between have no place in the text
        assert server.client.get("/languages").json()[1]["targets"] == ["de", "en", "fr"]
        statuses = [server.translate("x", api_key="no").status_code for _ in range(9)]
        assert statuses.count(429) >= 3
        assert int(server.translate("x").headers["retry-after"]) >= 1


@pytest.mark.slow
def test_a_full_queue_is_answered_with_when_to_come_back(translator):
    text = "I would like to know where you bought this watch. " * 30
    wanted = translator.translate(text).text
    with running("--queue-limit", "40") as server, ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(
                lambda _: httpx.post(
                    f"{server.address}/translate",
                    data={"q": text, "source": "en", "target": "de"},
                    timeout=60,
                    trust_env=False,
                ),
                range(12),
            )
        )
        full = [answer for answer in answers if answer.status_code == 503]
        assert full and all(int(answer.headers["retry-after"]) >= 1 for answer in full)
        assert full[0].json() == {"error": "Slowdown: the server is busy"}
        served = [answer for answer in answers if answer.status_code == 200]
        assert len(served) + len(full) == 12
        assert served and all(each.json() == {"translatedText": wanted} for each in served)
        assert server.translate("Good morning.").status_code == 200


@pytest.mark.slow
def test_ctrl_c_finishes_what_is_under_way_and_text_stays_out_of_the_log():
    with running("--log", "requests") as server:
        with httpx.Client(timeout=60) as client:
            values = {"q": "A secret sentence. " * 40, "source": "en", "target": "de"}
            with client.stream("POST", f"{server.address}/stream", json=values) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.process.send_signal(2)
                rest = list(lines)
        assert any(line.startswith('data: {"translatedText"') for line in rest)
        _, errors = server.process.communicate(timeout=30)
    assert server.process.returncode == 0
    assert "POST /stream 200" in errors and "secret" not in errors and "Traceback" not in errors


def test_the_log_holds_texts_where_asked_and_never_a_key(capsys):
    log = logger("text")
    for body in (
        b'{"q": "Tom", "api_key": "s3cret"}',
        b"api_key=s3cret&q=Tom",
        b"q=Tom&api_key=s3cret",
        b"q=Tom&api%5Fkey=s3cret",
        b"%61pi%5fkey=s3cret&q=Tom",
        b'{"q": "Tom", "api\\u005Fk\\u0065y": "s3cret"}',
        b'{"api_key" : "a, b} s3cret", "q": "Tom"}',
        b'{"api_key": "\\"s3cret", "q": "Tom"}',
        b'{"api_key": 1, "q": "Tom"}',
        in_parts("api_key", "s3cret") + in_parts("q", "Tom"),
        in_parts("api_key", "a\r\ns3cret") + in_parts("q", "Tom"),
    ):
        log("POST /translate 200 1 ms", body)
    shown = capsys.readouterr().err
    assert shown.count("Tom") == shown.count("...") == 11 and "s3cret" not in shown


def in_parts(name: str, value: str) -> bytes:
    """A field as forms send it that can hold files"""
    head = f'--part\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: text/plain'
    return f"{head}\r\n\r\n{value}\r\n".encode()


def test_a_model_that_is_not_there_is_said_before_its_languages(capsys):
    assert main(["serve", "--model", "nope"]) == 2
    assert "there is no model nope here" in capsys.readouterr().err
