"""The validation measures against scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from kinrank.training.metrics import average_precision, first_is_relevant


def test_average_precision_and_first_place():
    random = np.random.default_rng(0)
    scores = random.normal(size=(6, 30))
    relevant = random.random((6, 30)) < 0.3
    mask = np.ones((6, 30), dtype=bool)
    mask[2, 11:] = False
    relevant[5] = False
    args = torch.tensor(scores), torch.tensor(relevant), torch.tensor(mask)
    found, first = average_precision(*args), first_is_relevant(*args)
    for i in range(5):
        inside = mask[i]
        expected = average_precision_score(relevant[i][inside], scores[i][inside])
        assert abs(found[i].item() - expected) < 1e-5
        assert first[i].item() == relevant[i][inside][scores[i][inside].argmax()]
    assert torch.isnan(found[5]) and torch.isnan(first[5])  # a list with nothing to find says nothing
