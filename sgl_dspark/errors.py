"""One exception per cause that an operator can fix; every message is one sentence that names the remedy."""

from __future__ import annotations


class DsparkError(Exception):
    """Base of every error that a command reports as one sentence, without a traceback."""


class ConfigError(DsparkError):
    """A configuration field is missing, out of range or describes something that is not supported; names the field."""


class CheckpointError(DsparkError):
    """A draft checkpoint lacks a tensor, has one too many, or has one of the wrong shape; names the tensor."""


class TargetMismatchError(DsparkError):
    """A draft was made for another target: hidden size, vocabulary, depth or head geometry differ."""


class GoldenError(DsparkError):
    """A golden folder is incomplete or not in the documented format."""


class DataError(DsparkError):
    """Training or evaluation data cannot be read, or holds nothing that can be used."""


class LaunchError(DsparkError):
    """Serving cannot start, or would start without the DSpark worker in place."""


class ProfileError(DsparkError):
    """Step-time probes or a step-time profile hold nothing that can be used; names what is wrong."""


class StaleProfileError(ProfileError):
    """A step-time profile was measured under other conditions; names the first that differs, with both values."""


class CalibrationError(DsparkError):
    """A stored calibration is missing or was made for another draft; names what differs."""
