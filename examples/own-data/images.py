"""Writes a folder of images, one folder for each class: some of the handwritten digits as PNG files."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from cosdefense.data import load


def write_images(folder: Path, n: int = 300) -> None:
    """`zero/0.png`, `one/1.png` and so on, of the digits 0 to 2."""
    digits, names = load("digits"), ("zero", "one", "two")
    few = (digits.train_targets < len(names)).nonzero().flatten()[:n]
    for number, row in enumerate(few.tolist()):
        path = folder / names[int(digits.train_targets[row])] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train_inputs[row, 0].numpy()).save(path)


if __name__ == "__main__":
    write_images(Path(sys.argv[1] if len(sys.argv) > 1 else "digit-images"))
