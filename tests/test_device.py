"""Threads: what the caller set is kept, and a limit ends with the last who asked for it."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from kinrank.device import one_blas_thread, threads


def blas_threads() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


def test_the_callers_number_of_threads_is_respected(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads() >= 1


def test_the_limit_ends_with_the_last_caller():
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        outer, inner = one_blas_thread(), one_blas_thread()
        outer.__enter__()
        inner.__enter__()
        assert set(blas_threads()) == {1}
        outer.__exit__(None, None, None)  # the first to come is not the last to leave
        assert set(blas_threads()) == {1}
        inner.__exit__(None, None, None)
        assert blas_threads() == before
