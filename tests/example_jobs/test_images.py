"""Jobs that return images: stored as PNG, and shown by a browser."""

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cli.conftest import Stack
from cli.program import TIMEOUT
from PIL import Image


@pytest.mark.parametrize(
    ("job", "payload", "size"),
    [("Mandelbrot", {"width": 90, "height": 60}, (90, 60)), ("Plot", {"y": [3, 1, 2]}, (640, 480))],
)
def test_an_image_is_stored_as_png(
    examples: Stack, tmp_path: Path, job: str, payload: dict[str, Any], size: tuple[int, int]
) -> None:
    """REST returns it for display in a browser; the SDK downloads the same bytes."""
    task = examples.client.wait_for(examples.client.submit(f"@global:analysis:{job}", payload), TIMEOUT)
    assert task.error is None
    server = examples.server
    url = f"{server.url}/v1/joblib/tasks/{task.id}/result"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {server.token}"}, timeout=TIMEOUT)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert not answer.headers.get("content-disposition", "").startswith("attachment")
    stored = examples.client.download_result(task.id, tmp_path / "image.png")
    assert (stored.content_type, stored.size) == ("image/png", len(answer.content))
    assert examples.client.result(task.id) == answer.content == (tmp_path / "image.png").read_bytes()
    image = Image.open(io.BytesIO(answer.content))
    assert (image.format, image.size) == ("PNG", size)
    assert len(np.unique(np.asarray(image))) > 3


def test_rows_are_the_progress_of_an_image(examples: Stack) -> None:
    """Also of an image of one pixel."""
    for height in (60, 1):
        payload = {"width": 1, "height": height}
        task_id = examples.client.submit("@global:analysis:Mandelbrot", payload)
        progress = examples.client.wait_for(task_id, TIMEOUT).progress
        assert progress is not None
        assert (progress.current, progress.total, progress.unit) == (height, height, "rows")
