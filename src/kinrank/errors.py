"""The errors that kinrank raises: each says what is wrong, why, and the cure."""

from __future__ import annotations


class KinrankError(Exception):
    """Base of all; the command line prints it as one line and leaves with `exit_code`."""

    exit_code = 1


class InputError(KinrankError, ValueError):
    """Data that cannot be used: NaN, a zero vector, a wrong dimension, an unreadable file."""

    exit_code = 2


class SpecError(KinrankError, ValueError):
    """A method spec such as `aqe:k=10+csa` that names what does not exist."""

    exit_code = 2


class NotFittedError(KinrankError):
    """A method that works on the whole gallery was asked to rank before `fit(gallery)`."""


class MissingExtraError(KinrankError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'kinrank[{extra}]'")
        self.extra = extra


class GalleryError(KinrankError):
    """A gallery that is missing, locked, damaged or written by a newer version."""


class DownloadError(KinrankError):
    """A file that could not be fetched; the message names it and where to put it by hand."""
