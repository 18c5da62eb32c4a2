"""The one decorator of the compiled code."""

from __future__ import annotations

from typing import Any

from numba import njit

compiled: Any = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile on first use, into whichever entry point uses it (`kernels.py`)."""
