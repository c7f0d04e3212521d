"""Embed texts with a model, one by one and in batches, for `zndraw-joblib worker examples.embeddings`.

    zndraw-joblib submit embed text="a cat" model=small --wait
    zndraw-joblib submit embed_alone text="a cat" --wait

Here the model is a matrix of NumPy. As on a GPU, a call for 32 texts takes little longer than a call for one:
most of it is the time to read the matrix. `make bench ARGS=inference` measures both jobs.
"""

from functools import cache
from typing import Literal
from zlib import crc32

import numpy as np
from pydantic import BaseModel, Field

from zndraw_joblib import Batch, TaskContext, job

_TOKENS = 8192
_SIZES = {"small": 256, "large": 2048}
Model = Literal["small", "large"]


class Text(BaseModel):
    """The payload of a task. A batch has texts for one model."""

    text: str = Field(max_length=10_000)
    model: Model = "large"


@cache
def load(model: Model) -> np.ndarray:
    """Return the weights of a model; they stay in memory."""
    return np.random.default_rng(0).standard_normal((_SIZES[model], _TOKENS), dtype=np.float32)


def tokens_of(text: str) -> np.ndarray:
    """Return how often each token is in a text."""
    counts = np.zeros(_TOKENS, dtype=np.float32)
    for word in text.split():
        counts[crc32(word.encode()) % _TOKENS] += 1
    return counts


def normed(vector: np.ndarray) -> list[float]:
    """Return the first numbers of a vector of length 1."""
    return [round(float(number), 6) for number in vector[:8] / (np.linalg.norm(vector) or 1)]


@job(batch=Batch(max=32, wait_seconds=0.05, key="/model"))
def embed(texts: list[Text], tasks: list[TaskContext]) -> list[list[float] | ValueError]:
    """Embed texts together; an empty text fails alone."""
    vectors = load(texts[0].model) @ np.stack([tokens_of(item.text) for item in texts], axis=1)
    tasks[0].log(f"first of a batch of {len(texts)}")
    return [
        normed(vector) if item.text else ValueError("the text is empty")
        for item, vector in zip(texts, vectors.T, strict=True)
    ]


@job
def embed_alone(text: str, model: Model = "large") -> list[float]:
    """Embed one text."""
    return normed(load(model) @ tokens_of(text))
