"""Triton decides at its import whether it interprets, so the tests under the interpreter have a process of their own.

``TRITON_INTERPRET=1 pytest tests/unit/kernels`` runs them directly; without the variable, `test_in_own_process` does.
"""

from __future__ import annotations

from dspark_sglang.kernels.choice import interpreted

if interpreted():
    collect_ignore = ["test_choice.py", "test_compiles.py", "test_in_own_process.py"]
else:
    collect_ignore_glob = ["test_interpreted_*.py"]
