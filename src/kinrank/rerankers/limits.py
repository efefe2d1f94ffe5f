"""What parameters of a method may be, said in the same words by all."""

from __future__ import annotations

from kinrank.errors import SpecError


def at_least_one(**counts: int) -> None:
    """Refuse a count below one by name."""
    for name, value in counts.items():
        if value < 1:
            raise SpecError(f"{name} must be at least 1, got {value}")


def positive(**numbers: float) -> None:
    """Refuse what is not greater than zero."""
    for name, value in numbers.items():
        if not value > 0:
            raise SpecError(f"{name} must be greater than 0, got {value}")


def share(**numbers: float) -> None:
    """Refuse what is not from zero to one."""
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise SpecError(f"{name} must be from 0 to 1, got {value}")
