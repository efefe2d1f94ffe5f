"""Linear SVMs of a few points each, many at once: the plane of discriminative expansion.

For points f_i with signs y_i, with the bias kept as one more coordinate (as in LIBLINEAR):

    min_{w, b} 1/2 |w|^2 + b^2/2 + C sum_i max(0, 1 - y_i (w.f_i + b))
    dual: min_a 1/2 a' Q a - sum a,  0 <= a <= C,  Q_ij = y_i y_j (f_i.f_j + 1);   w = sum_i a_i y_i f_i
"""

from __future__ import annotations

import numpy as np

from kinrank.types import Array

_STEPS = 600  # at most, of the accelerated descent
_HARDEST = 32  # negatives taken in at a time
_TRY = 40  # steps between attempts to finish exactly


def multipliers(gram: Array, signs: Array, c: float) -> Array:
    """a (B, m) of B problems with m points: gram (B, m, m), signs (B, m) of 1, -1 or 0 (absent)."""
    signs = signs.astype(np.float64)
    q = (gram.astype(np.float64) + 1) * signs[:, :, None] * signs[:, None, :]
    present = signs != 0
    step = 1 / np.maximum(np.abs(q).sum(2).max(1), 1e-12)[:, None]  # the largest eigenvalue is no larger
    a, ahead, momentum = np.zeros(signs.shape), np.zeros(signs.shape), 1.0
    for turn in range(1, _STEPS + 1):
        slope = (q @ ahead[:, :, None])[:, :, 0] - present
        following = np.minimum(np.maximum(ahead - step * slope, 0), c) * present
        change = following - a
        uphill = ((ahead - following) * change).sum(1, keepdims=True) > 0  # restart: O'Donoghue 2015
        faster = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = following + np.where(uphill, 0, (momentum - 1) / faster) * change
        a, momentum = following, faster
        if turn % _TRY == 0:
            exact = _polished(a, q, present, c)
            if _optimal(exact, q, present, c):
                return exact
    return _polished(a, q, present, c)


def normal(points: Array, signs: Array, c: float) -> Array:
    """w (d,) of one problem with many negatives: the hardest first, then those that it gets wrong."""
    positive = signs > 0
    hardness = np.where(positive, np.inf, points @ points[positive].sum(axis=0))
    work = np.argsort(-hardness, kind="stable")[: positive.sum() + _HARDEST]
    for _ in range(len(points)):
        f, y = points[work], signs[work]
        weights = multipliers((f @ f.T)[None], y[None], c)[0] * y
        w: Array = weights @ f
        margins = signs * (points @ w + weights.sum())
        margins[work] = np.inf
        wrong = np.flatnonzero(margins < 1 - 1e-6)
        if len(wrong) == 0:
            break
        work = np.concatenate([work, wrong[np.argsort(margins[wrong], kind="stable")[:_HARDEST]]])
    return w


def _optimal(a: Array, q: Array, present: Array, c: float) -> bool:
    """Whether no multiplier of any problem can move downhill (the Karush-Kuhn-Tucker conditions)."""
    slope = ((q @ a[:, :, None])[:, :, 0] - present) * present
    held = np.where((a <= 0) & (slope > 0), 0, slope)
    held = np.where((a >= c) & (slope < 0), 0, held)
    return bool(np.abs(held).max() < 1e-7)


def _polished(a: Array, q: Array, present: Array, c: float) -> Array:
    """The multipliers between the bounds from their linear equations, where that stays within the bounds."""
    free = (a > 1e-6 * c) & (a < (1 - 1e-6) * c)
    fixed = np.where(free, 0, np.where(a > c / 2, c, 0) * present)
    rest = np.where(free, 1 - (q @ fixed[:, :, None])[:, :, 0], 0)
    both = free[:, :, None] & free[:, None, :]
    system = np.where(both, q, 0) + np.eye(q.shape[1]) * np.where(free, 1e-10, 1)[:, None, :]
    solved = np.linalg.solve(system, rest[:, :, None])[:, :, 0]
    exact = np.where(free, solved, fixed)
    inside = ((exact >= 0) & (exact <= c)).all(1, keepdims=True)
    better = _dual(exact, q, present) <= _dual(a, q, present) + 1e-9
    return np.where(inside & better[:, None], exact, a)


def _dual(a: Array, q: Array, present: Array) -> Array:
    value: Array = 0.5 * (a * (q @ a[:, :, None])[:, :, 0]).sum(1) - (a * present).sum(1)
    return value
