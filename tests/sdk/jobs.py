"""Extensions that the tests register."""

from typing import Any

from pydantic import field_validator

from zndraw_joblib.jobs.extensions import Category, Extension


class Add(Extension):
    category = Category.MODIFIER
    a: int = 0
    b: int = 0

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Return the sum."""
        return self.a + self.b


class Picky(Extension):
    """Rejects a value that its JSON Schema allows."""

    category = Category.ANALYSIS
    word: str

    @field_validator("word")
    @classmethod
    def check(cls, word: str) -> str:
        """Reject one word."""
        if word == "bad":
            raise ValueError("that word is bad")
        return word

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the word."""
        return self.word
