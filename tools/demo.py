"""A few sentences, each with what the model that ships makes of it."""

from mlx_transformer import load

TEXTS = [
    "Good morning.",
    "Where is the train station?",
    "I have never seen such a beautiful day.",
]


def main() -> None:
    for text, translation in zip(TEXTS, load().translate(TEXTS), strict=True):
        print(f"{text}\n    {translation.text}")


if __name__ == "__main__":
    main()
