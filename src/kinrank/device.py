"""The one place that picks the device and the number of threads, for ONNX Runtime and for torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kinrank.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import onnxruntime
    import torch


def threads() -> int:
    """Threads to use: what the caller set in OMP_NUM_THREADS, otherwise the cores this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else cores


def onnx_session(
    model: str | Path | bytes, device: str = "auto", workers: int | None = None
) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session on the device: `auto` takes CUDA where this build of the runtime has it.

    `workers` threads work on one call (all that there are when None).
    """
    ort = _runtime()
    available = ort.get_available_providers()
    providers: list[Any] = ["CPUExecutionProvider"]
    if device in ("auto", "cuda") and "CUDAExecutionProvider" in available:
        providers.insert(0, "CUDAExecutionProvider")
    elif device == "cuda":
        raise InputError(
            "no CUDA was found, by ONNX Runtime or by torch; cure: on a machine with an NVIDIA GPU, pip "
            "install onnxruntime-gpu in place of onnxruntime, or 'kinrank[train]' with a CUDA build of torch"
        )
    elif device not in ("auto", "cpu"):
        raise InputError(f"unknown device '{device}'; there are: auto, cpu, cuda")
    options = ort.SessionOptions()
    options.intra_op_num_threads = workers or threads()
    options.log_severity_level = 3
    # Waiting threads sleep: in a busy loop they would keep the cores from decoders and from NumPy's products.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=providers)
    except Exception as error:  # the runtime raises a family of its own without a common base
        what = "bytes" if isinstance(model, bytes) else f"'{model}'"
        raise InputError(f"the ONNX model {what} cannot be loaded: {str(error).splitlines()[0]}") from None


def _runtime() -> ModuleType:
    # From 1.29 on the runtime reports its use to its makers unless told not to before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def serves_by_torch() -> bool:
    """True where models run on CUDA through torch: ONNX Runtime was built without it, torch with it."""
    import importlib.util

    if "CUDAExecutionProvider" in _runtime().get_available_providers():
        return False
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


_blas_lock = threading.Lock()
_blas_callers = 0
_blas_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy's products on one thread each, for code that runs several side by side.

    Its own threads would wait in a busy loop between two products, on the cores that the others need.
    The limit holds for the process until the last caller has left.
    """
    global _blas_callers, _blas_limit
    from threadpoolctl import threadpool_limits

    with _blas_lock:
        if _blas_callers == 0:
            _blas_limit = threadpool_limits(limits=1, user_api="blas")
        _blas_callers += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_callers -= 1
            if _blas_callers == 0:
                _blas_limit.restore_original_limits()


def torch_device(device: str = "auto") -> torch.device:
    """The torch device: CUDA, then Apple's MPS, then the CPU."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("training", "train") from None
    mps = getattr(torch.backends, "mps", None)
    there = {"cuda": torch.cuda.is_available(), "mps": bool(mps and mps.is_available()), "cpu": True}
    if device == "auto":
        device = next(name for name, present in there.items() if present)
    kind = device.partition(":")[0]
    if not there.get(kind, False):
        usable = ", ".join(["auto", *(name for name, present in there.items() if present)])
        raise InputError(f"torch has no device '{device}' on this machine; there are: {usable}")
    return torch.device(device)
