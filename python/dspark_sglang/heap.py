"""Keep the memory of freed tensors in the process, on a CPU."""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

# Parameters of mallopt(3), glibc.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# The largest that glibc accepts.
_LARGEST_FROM_HEAP = 32 << 20
_KEPT, _GROWTH = 2**31 - 1, 64 << 20


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory instead of giving it back to the kernel.

    A step allocates and frees the same few megabytes in every layer. Given back each time, their pages are faulted in
    and zeroed again, which costs up to a third of attention over 24 to 32 requests.

    Returns
    -------
    bool
        Whether the C library took it; False, which only costs speed, where it is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.info(
            "the C library has no mallopt, so freed memory goes back to the kernel; decoding is a little slower"
        )
        return False
    options = ((_MMAP_THRESHOLD, _LARGEST_FROM_HEAP), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _GROWTH))
    return all([bool(mallopt(parameter, value)) for parameter, value in options])
