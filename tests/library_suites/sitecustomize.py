"""Registers our backend in programs that joblib's tests start; not in interpreters, which have joblib only later."""

import os
import threading

if os.environ.get("POOL_PARTY_SUITE") == "joblib" and threading._daemon_threads_allowed():
    import joblib_plugin  # noqa: F401
