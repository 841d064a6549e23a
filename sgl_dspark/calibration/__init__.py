"""Confidence calibration: sequential temperature scaling and its statistics (Sec. 3.2.1)."""
