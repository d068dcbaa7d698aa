"""The tool that joins short sentences."""

import clauses

ANN = ("My name is Ann.", "Ich heiße Ann.")
LIVING = ("I live here.", "Ich wohne hier.")


def test_the_second_sentence_loses_its_capital_where_it_has_none_of_its_own():
    assert clauses.joined(ANN, LIVING) == (
        "My name is Ann and I live here.",
        "Ich heiße Ann und ich wohne hier.",
    )
    assert clauses.joined(ANN, ("You are late.", "Sie kommen spät.")) == (
        "My name is Ann and you are late.",
        "Ich heiße Ann und Sie kommen spät.",
    )
    assert clauses.joined(ANN, ("She is late.", "Sie kommt spät."))[1].endswith(
        "und sie kommt spät."
    )


def test_only_statements_are_joined_and_names_and_nouns_come_first():
    assert clauses.is_statement(ANN)
    assert not clauses.is_statement(("Who?", "Wer?"))
    assert not clauses.is_statement(("He left. I stayed.", "Er ging. Ich blieb."))
    assert clauses.can_follow(LIVING)
    assert not clauses.can_follow(("Ann lives here.", "Ann wohnt hier."))
    assert not clauses.can_follow(("The time is up.", "Zeit ist um."))


def test_a_file_of_them_is_the_same_every_time(tmp_path, monkeypatch):
    for language, texts in zip(("en", "de"), zip(ANN, LIVING, strict=True), strict=True):
        (tmp_path / f"short.{language}").write_text("".join(f"{t}\n" for t in texts), "utf-8")
    made = []
    for name in ("first", "second"):
        out = tmp_path / name
        arguments = ["clauses.py", str(tmp_path / "short"), "--out", str(out), "--count", "5"]
        monkeypatch.setattr("sys.argv", arguments)
        clauses.main()
        made.append([(tmp_path / f"{name}.{side}").read_text("utf-8") for side in ("en", "de")])
    assert made[0] == made[1]
    english, german = (text.splitlines() for text in made[0])
    assert len(english) == len(german) == 5
    assert {line.split(" and ")[1] for line in english} == {"I live here.", "my name is Ann."}
