"""Draw images: a job that returns an image of Pillow or a figure of Matplotlib stores a PNG as its result.

    pip install matplotlib pillow
    zndraw-joblib serve
    zndraw-joblib worker examples.image
    zndraw-joblib submit Mandelbrot width=800 height=600 --wait > mandelbrot.png
    zndraw-joblib submit Plot 'y=[3, 1, 2]' title=Energy --wait > plot.png

`GET /v1/joblib/tasks/{id}/result` returns the PNG as `image/png`; a browser shows it. `run` gets `task`, the
running task, if it has an argument of this name, and `vis`, what the function of `worker --context` returns.
"""

from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from pydantic import Field

from zndraw_joblib import Category, Extension, TaskContext


class Mandelbrot(Extension):
    """Draw the Mandelbrot set, row by row."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: int = Field(default=640, ge=1, le=4096)
    height: int = Field(default=480, ge=1, le=4096)

    def run(self, vis: Any, *, task: TaskContext) -> Image.Image:
        """Return the image."""
        pixels = np.zeros((self.height, self.width), np.uint8)
        for row in task.track(range(self.height), unit="rows"):
            point = np.linspace(-2.2, 0.8, self.width) + 1j * (2.4 * row / self.height - 1.2)
            value = np.zeros_like(point)
            for _ in range(50):
                is_inside = abs(value) <= 2
                value[is_inside] = value[is_inside] ** 2 + point[is_inside]
                pixels[row, is_inside] += 5
        task.log(f"drew {pixels.size:,} pixels")
        return Image.fromarray(pixels)


class Plot(Extension):
    """Plot numbers. `Figure` works in any thread; `matplotlib.pyplot` does not."""

    category: ClassVar[Category] = Category.ANALYSIS
    y: list[float]
    title: str = ""

    def run(self, vis: Any, **kwargs: Any) -> Figure:
        """Return the figure, of 640 by 480 pixels."""
        figure = Figure()
        axes = figure.add_subplot(title=self.title)
        axes.plot(self.y)
        return figure
