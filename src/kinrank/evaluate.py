"""Public name of the protocol: numpy in, floats out (`kinrank.evaluate.mean_average_precision(...)`)."""

from kinrank.evaluation.protocol import *  # noqa: F403
from kinrank.evaluation.protocol import __all__  # noqa: F401
