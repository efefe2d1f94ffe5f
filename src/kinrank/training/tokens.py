"""What the universal model reads of a list: similarities in, tokens and neighbourhoods out.

Everything is relative to the list itself (standardised, ranked, compared), so that a similarity of .8
means the same for every backbone. All of it exports to ONNX: features have one definition, in training
and in serving. Shapes: B lists, n = 1 + K nodes with the query first, T neighbours a node.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ANCHORS = 64  # L: the query and the top L - 1
NEIGHBOURS = 20  # T
GRAPHS = (5, 10, 20)  # mutual k-nearest graphs that the rules work on
STEPS = 15  # of the random walk with restart
RESTART = 0.1
SCALARS = 31  # numbers a token beside its anchors
PAIRS = 8  # numbers a (node, neighbour) pair


class ListTokens(NamedTuple):
    """The description of a batch of lists."""

    tokens: Tensor  # (B, n, ANCHORS + SCALARS)
    first: Tensor  # (B, n) first-round scores, standardised over the candidates; 0 for the query
    nodes: Tensor  # (B, n, T) neighbours of each node
    pairs: Tensor  # (B, n, T, PAIRS)
    valid: Tensor  # (B, n, T) False where a short list has no such neighbour


@torch.no_grad()
def describe(similarities: Tensor) -> ListTokens:
    """Tokens, neighbourhoods and pair features of lists (B, n, n), the query first, best first."""
    z = standardise(similarities.float())
    first = standardise_candidates(z[:, 0])
    index, value, valid = neighbours(z)
    near = gather(z[:, 0], index)  # (B, n, T) how close each neighbour is to the query
    thresholds = [value[..., k - 1] for k in GRAPHS]
    mutual = [
        (valid[..., :k] & (value[..., :k] >= gather(bound, index[..., :k]))).float()
        for k, bound in zip(GRAPHS, thresholds)
    ]
    # The three graphs walk side by side: many small steps cost more than a few wide ones.
    edges = torch.cat([weights(value, padded(m)) for m in mutual])
    walks = random_walk(edges, index.repeat(len(GRAPHS), 1, 1)).chunk(len(GRAPHS))
    rules = [
        *walks,
        *(z[:, : 1 + k].mean(1) for k in (3, 8)),  # average query expansion
        alpha_expansion(z, first),
        *(mean_of(near[..., :k], valid[..., :k]) for k in (3, 10)),  # database-side augmentation
        mean_of(gather(z[:, :9].mean(1), index[..., :5]), valid[..., :5]),  # both
        overlap(weights(value, mutual[2]), index),
    ]
    ruled = torch.stack([standardise_candidates(rule) for rule in rules], -1)  # (B, n, 10)
    tokens = torch.cat([anchors(z), scalars(z, first, value, valid, mutual, near), ruled], -1)
    pairs = (
        torch.stack(
            [
                value / 4,
                rank_decay(value),
                *(padded(m) for m in mutual),
                (index == 0).float(),
                near / 4,
                value - gather(thresholds[1], index),
            ],
            -1,
        )
        * valid[..., None]
    )
    return ListTokens(tokens, first, index, pairs, valid)


def standardise(similarities: Tensor) -> Tensor:
    """(S - mean) / deviation over the pairs of different nodes, clipped: free of the feature's own scale."""
    n = similarities.shape[1]
    other = 1 - torch.eye(n, device=similarities.device)
    count = n * (n - 1)
    mean = (similarities * other).sum((1, 2), keepdim=True) / count
    centred = similarities - mean
    deviation = ((centred * other).square().sum((1, 2), keepdim=True) / count).sqrt()
    return (centred / (deviation + 1e-6)).clamp(-6, 8)


def standardise_candidates(scores: Tensor) -> Tensor:
    """Scores (B, n) to mean 0 and deviation 1 over the candidates, clipped; the query's own becomes 0."""
    candidates = scores[:, 1:]
    centred = candidates - candidates.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt()
    return torch.nn.functional.pad((centred / (deviation + 1e-6)).clamp(-6, 8), (1, 0))


def neighbours(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The T nearest other nodes of each node: their positions, their similarities, and which are real."""
    n = z.shape[1]
    self_pairs = torch.eye(n, device=z.device) * 1e4
    # T columns of nothing let lists shorter than T through the same graph.
    wide = torch.nn.functional.pad(z - self_pairs, (0, NEIGHBOURS), value=-1e4)
    value, index = wide.topk(NEIGHBOURS, dim=2)
    valid = value > -100
    return index.clamp(max=n - 1), value.clamp(min=-6), valid


def gather(values: Tensor, index: Tensor) -> Tensor:
    """values (B, n) at index (B, n, T) -> (B, n, T)."""
    return values.gather(1, index.flatten(1)).view(index.shape)


def mean_of(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the neighbours that exist (0 where there is none)."""
    held = valid.float()
    return (values * held).sum(-1) / held.sum(-1).clamp(min=1)


def weights(value: Tensor, mutual: Tensor) -> Tensor:
    """Edge weights of a mutual neighbour graph, exponential in the standardised similarity."""
    return mutual * (0.7 * value).exp()


def random_walk(edges: Tensor, index: Tensor) -> Tensor:
    """log of the diffusion from the query: f <- (1 - r) D^-1/2 W D^-1/2 f + r e_query, STEPS times."""
    degree = edges.sum(-1).clamp(min=1e-6).rsqrt()
    moves = edges * degree[..., None] * gather(degree, index) * (1 - RESTART)
    source = torch.zeros_like(degree)
    source[:, 0] = RESTART
    heat = source
    for _ in range(STEPS):
        heat = (moves * gather(heat, index)).sum(-1) + source
    return (heat + 1e-6).log()


def alpha_expansion(z: Tensor, first: Tensor) -> Tensor:
    """Query expansion over the first 50, weighed by the third power of the standardised score."""
    weight = first[:, :51].clamp(min=0) ** 3
    return (weight[..., None] * z[:, :51]).sum(1) / weight.sum(1, keepdim=True).clamp(min=1e-3)


def overlap(edges: Tensor, index: Tensor) -> Tensor:
    """Shared neighbourhood with the query, itself averaged with its first 6 (the k-reciprocal idea)."""
    share = edges / edges.sum(-1, keepdim=True).clamp(min=1e-6)
    n = share.shape[1]
    places = torch.arange(n, device=share.device)
    head = index[:, :7].flatten(1)  # (B, 7 T)
    mine = ((head[..., None] == places) * share[:, :7].flatten(1)[..., None]).sum(1) / 7  # (B, n)
    return torch.minimum(share, gather(mine, index)).sum(-1)


def anchors(z: Tensor) -> Tensor:
    """Similarities to the first L of the list, in rank order, as the paper has them; padded with 0."""
    return torch.nn.functional.pad(z[..., :ANCHORS], (0, ANCHORS))[..., :ANCHORS] / 4


def rank_decay(value: Tensor) -> Tensor:
    """e^(-t/5) over the neighbours' own order."""
    steps = torch.arange(NEIGHBOURS, device=value.device) / -5
    return steps.exp().expand(value.shape)


def padded(mutual: Tensor) -> Tensor:
    """A graph of k neighbours in T columns."""
    return torch.nn.functional.pad(mutual, (0, NEIGHBOURS - mutual.shape[-1]))


def scalars(
    z: Tensor, first: Tensor, value: Tensor, valid: Tensor, mutual: list[Tensor], near: Tensor
) -> Tensor:
    """What a node knows of its place in the list (B, n, 21)."""
    n = z.shape[1]
    one = torch.ones_like(first)
    rank = torch.arange(n, device=z.device).float() * one
    size = one * (rank[:, -1:] + 1)
    is_query = (rank == 0).float()
    behind = (z > z[..., :1]).float().sum(-1)  # nodes that i likes better than the query
    liked = (z >= value[..., 9:10]).float().sum(1)  # how many hold i among their ten: hubs
    columns = [
        first,
        is_query,
        (1 + rank).log() / 3,
        rank / size,
        size.log() / 3 - 1.5,
        z.mean(2),
        value[..., 0] / 4,
        *(mean_of(value[..., :k], valid[..., :k]) / 4 for k in (5, 20)),
        (1 + behind).log() / 3,
        behind / size,
        liked.log1p() / 3,
        *(m.sum(-1) / k for m, k in zip(mutual, GRAPHS)),
        *(padded(m)[..., :k].mul(near[..., :k]).sum(-1) / k for m, k in zip(mutual, GRAPHS)),
        near.amax(-1) / 4,
        first[:, 1:2] - first,  # how far behind the best
        # The list's own shape: how far the best stand out of the middle.
        first[:, 1:].amax(1, keepdim=True) * one / 4,
    ]
    return torch.stack(columns, -1)
