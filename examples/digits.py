"""Scikit-learn's handwritten digits, without the second that its import takes."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

#: The last images are kept for the test of the trained model.
TRAINING_IMAGES = 1536


def load() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 8 by 8 values from 0 to 1, one a row, and their digits."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit("scikit-learn is missing: pip install scikit-learn")
    path = Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    if not path.exists():
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        return images / 16.0, digits
    with gzip.open(path, "rt") as file:
        rows = np.fromstring(file.read().replace("\n", ","), sep=",").reshape(-1, 65)
    return rows[:, :-1] / 16.0, rows[:, -1].astype(int)
