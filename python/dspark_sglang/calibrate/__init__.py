"""``dspark calibrate``: collect verified rounds from a server, fit the calibration of its draft, store it.

``source.py`` talks to the server, ``collect.py`` decides what is asked of it, ``main.py`` fits and reports.
"""

from __future__ import annotations
