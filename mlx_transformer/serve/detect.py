"""Which language a text is in, among those the models know."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

ENOUGH = 2000  # characters tell as much as all of them


class Detector:
    """py3langid's classifier. It takes a second to load, which is done aside."""

    def __init__(self, languages: Sequence[str]) -> None:
        """Where a text tells nothing, the order of the languages decides."""
        self._languages = list(languages)
        loader = ThreadPoolExecutor(1, thread_name_prefix="detector")
        self._identifier: Future[Any] = loader.submit(self._load)
        loader.shutdown(wait=False)

    def detect(self, text: str) -> list[tuple[str, float]]:
        """Languages and how sure it is (0 to 100), the most probable first."""
        sample = text[:ENOUGH]
        if not any(character.isalpha() for character in sample):
            return [(code, 0.0) for code in self._languages]
        ranked = self._identifier.result().rank(sample)
        known = [(code, round(100 * probability, 1)) for code, probability in ranked]
        return [*known, *((code, 0.0) for code in self._languages if code not in dict(known))]

    def _load(self) -> Any:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        identifier.set_languages(set(self._languages) & set(identifier.labels))
        return identifier
