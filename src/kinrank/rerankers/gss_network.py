"""The graph network of guided similarity separation (Liu 2019), forward and backward by hand.

    H1 = (A~ X) W1 + b1,  Z1 = elu(H1),  H2 = (A~ Z1) W2 + b2,  out = H1 + decay * elu(H2),  e = out / |out|
    s_ij = max(0, e_i.e_j),   loss = mean_ij -1/2 (s_ij - beta)^2

The loss drives every pair away from beta: what is more alike becomes alike, what is less parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kinrank.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PAIR_BLOCK = 1 << 23  # pairs in memory at a time

Weights = dict[str, Array]  # w1 (d, d), b1 (d,), w2 (d, d), b2 (d,)


def initial(dim: int, seed: int) -> Weights:
    """Both layers begin as the identity and a little noise, so that training begins at the features."""
    rng = np.random.default_rng(seed)

    def layer() -> Array:
        return (np.eye(dim) + 1e-5 * rng.standard_normal((dim, dim))).astype(np.float32)

    zero = np.zeros(dim, np.float32)
    return {"w1": layer(), "b1": zero, "w2": layer(), "b2": zero.copy()}


def elu(x: Array) -> Array:
    """x above zero, e^x - 1 below."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _elu_slope(x: Array) -> Array:
    return np.where(x > 0, x.dtype.type(1), np.exp(np.minimum(x, 0)))


def first_layer(weights: Weights, mixed: Array) -> Array:
    """H1 (n, d) of rows of A~ X."""
    return mixed @ weights["w1"] + weights["b1"]


def embedding(weights: Weights, h1: Array, mixed_z1: Array, decay: float) -> Array:
    """e (n, d) of unit length, given H1 and A~ Z1 of the same nodes."""
    out = h1 + h1.dtype.type(decay) * elu(mixed_z1 @ weights["w2"] + weights["b2"])
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)


@dataclass
class Step:
    """One pass: embeddings of some nodes, and from the slope of a loss in them the slopes of the weights."""

    weights: Weights
    mixed: Array  # (n, d) rows of A~ X of the nodes that the batch reads
    mix: csr_matrix  # (b, n) rows of A~ of the batch
    own: Array  # (b,) where the batch's nodes stand among the n
    decay: float
    e: Array = field(init=False)  # (b, d)

    def __post_init__(self) -> None:
        self.h1 = first_layer(self.weights, self.mixed)
        self.mixed_z1 = self.mix @ elu(self.h1)
        self.h2 = self.mixed_z1 @ self.weights["w2"] + self.weights["b2"]
        out = self.h1[self.own] + self.h1.dtype.type(self.decay) * elu(self.h2)
        self.length = np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
        self.e = out / self.length

    def backward(self, slope: Array) -> Weights:
        """Slopes of the weights, given that of the loss in e (b, d)."""
        along = np.einsum("bd,bd->b", self.e, slope)[:, None]
        d_out = (slope - self.e * along) / self.length
        d_h2 = d_out.dtype.type(self.decay) * d_out * _elu_slope(self.h2)
        d_z1 = self.mix.T @ (d_h2 @ self.weights["w2"].T)
        d_h1 = d_z1 * _elu_slope(self.h1)
        np.add.at(d_h1, self.own, d_out)
        return {
            "w1": self.mixed.T @ d_h1,
            "b1": d_h1.sum(0),
            "w2": self.mixed_z1.T @ d_h2,
            "b2": d_h2.sum(0),
        }


def pair_loss(e: Array, beta: float) -> tuple[float, Array]:
    """(loss, its slope in e (b, d)) over all pairs of the batch, a block of rows at a time."""
    size = len(e)
    slope = np.empty_like(e)
    total = 0.0
    step = max(1, PAIR_BLOCK // size)
    for start in range(0, size, step):
        similarities = e[start : start + step] @ e.T
        gap = np.maximum(similarities, 0) - e.dtype.type(beta)
        total -= 0.5 * float(np.einsum("ij,ij->", gap, gap, dtype=np.float64))
        gap *= similarities > 0
        slope[start : start + step] = gap @ e
    slope *= e.dtype.type(-2 / size**2)  # each pair stands twice in the sum
    return total / size**2, slope


class Adam:
    """Adam (Kingma 2015) with its usual constants."""

    def __init__(self, weights: Weights, rate: float) -> None:
        self.rate, self.step = rate, 0
        self.first = {name: np.zeros_like(value) for name, value in weights.items()}
        self.second = {name: np.zeros_like(value) for name, value in weights.items()}

    def update(self, weights: Weights, slopes: Weights) -> None:
        """One step, in place."""
        self.step += 1
        for name, slope in slopes.items():
            first, second = self.first[name], self.second[name]
            first += 0.1 * (slope - first)
            second += 0.001 * (slope * slope - second)
            mean, square = first / (1 - 0.9**self.step), second / (1 - 0.999**self.step)
            weights[name] -= (self.rate * mean / (np.sqrt(square) + 1e-8)).astype(slope.dtype)
