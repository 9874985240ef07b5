"""Says in plain words what the measured figures show. No conclusion is fixed beforehand."""

import os
import sys
from collections.abc import Callable, Mapping

from demo.pools import ALONE
from pool_party._measuring.meter import Usage

_WORTH_IT = 1.2  # speed-ups below this count as none
_TIE = 0.95  # relative speeds at least this close count as equal, and memory decides
_NOTICEABLE_CORES = 0.2  # number of the machine's cores that other programs keep busy

type _Rates = Mapping[str, Mapping[int, float]]  # kind of worker -> order of the matrix -> problems per second


def _speed_ups(usages: Mapping[str, Usage]) -> dict[str, float]:
    alone_s = usages[ALONE].wall_s
    return {kind: alone_s / usage.wall_s for kind, usage in usages.items() if kind != ALONE}


def _extra_mb(kind: str, usages: Mapping[str, Usage]) -> float | None:
    """Return how many megabytes the workers of a kind needed beyond the sequential run's memory."""
    own, alone = usages[kind].peak_bytes, usages[ALONE].peak_bytes
    return None if own is None or alone is None else max(0, own - alone) / 1e6


def _best(speed_ups: Mapping[str, float], cost: Callable[[str], float]) -> str:
    """Return the fastest kind or, among kinds that are about as fast, the one with the lowest cost."""
    enough = max(speed_ups.values()) * _TIE
    return min((kind for kind, speed_up in speed_ups.items() if speed_up >= enough), key=cost)


def _has_gil() -> bool:
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_enabled()


def _on_threads(n_workers: int, usages: Mapping[str, Usage]) -> str:
    cores, speed_up = usages["thread"].cores, _speed_ups(usages)["thread"]
    found = f"{n_workers} threads ran the pure Python {speed_up:.2f} x as fast as none"
    busy = f"{cores:.1f} cores were busy"
    if speed_up >= _WORTH_IT:
        return f"{found}: {busy}{'' if _has_gil() else ', as this Python has no GIL'}."
    if _has_gil() and n_workers > 1:
        return f"{found}: {busy}, since they share one GIL, and only its holder runs."
    return f"{found}: {busy}."


def _on_memory(usages: Mapping[str, Usage]) -> str:
    """Return how much more memory each kind needed, or "" if memory is unknown."""
    needed = {kind: _extra_mb(kind, usages) for kind in usages if kind != ALONE}
    parts = [f"{kind} {extra:.0f} MB" for kind, extra in needed.items() if extra is not None]
    return f"Memory on top of the sequential run's: {', '.join(parts)}." if parts else ""


def _on_python(usages: Mapping[str, Usage]) -> str:
    speed_ups = _speed_ups(usages)
    best = _best(speed_ups, lambda kind: _extra_mb(kind, usages) or 0.0)
    if speed_ups[best] < _WORTH_IT:
        return f"No kind gained much on pure Python here (best: {best}, {speed_ups[best]:.2f} x)."
    listed = ", ".join(f"{kind} {speed_up:.2f} x" for kind, speed_up in speed_ups.items())
    return f'For pure Python, take kind="{best}" here ({listed}).'


def _on_numpy(rates: _Rates, usages: Mapping[str, Usage]) -> str:
    """Return which kind to choose for NumPy. The speed-up of a kind is its mean over all orders."""
    alone = rates[ALONE]
    speed_ups = {
        kind: sum(own[order] / alone[order] for order in alone) / len(alone)
        for kind, own in rates.items()
        if kind != ALONE
    }
    best = _best(speed_ups, lambda kind: _extra_mb(kind, usages) or 0.0)
    listed = ", ".join(f"{kind} {speed_up:.2f} x" for kind, speed_up in speed_ups.items())
    if speed_ups[best] < _WORTH_IT:
        return f"No kind gained much on these NumPy problems here ({listed})."
    why = ": NumPy lets go of the GIL while it computes" if best == "thread" and _has_gil() else ""
    return f'For these NumPy problems, take kind="{best}"{why} ({listed}).'


def _on_others(n_workers: int, usages: Mapping[str, Usage]) -> str:
    """Return a warning if other programs used CPU time that the workers could have used, else ""."""
    wall_s = sum(usage.wall_s for usage in usages.values())
    cores = sum(usage.others_cpu_s for usage in usages.values()) / wall_s
    if cores < _NOTICEABLE_CORES or cores + n_workers <= (os.cpu_count() or 1) + _NOTICEABLE_CORES:
        return ""
    return f"Other programs kept {cores:.1f} cores busy meanwhile, which slowed the workers down."


def conclusions(n_workers: int, usages: Mapping[str, Usage], rates: _Rates) -> list[str]:
    """Return a few sentences about the pictures (`usages` by kind) and the problems (`rates`)."""
    if len(usages) == 1:
        return ["Nothing yet: only the sequential run took part."]
    sentences = [_on_threads(n_workers, usages)] if "thread" in usages else []
    sentences += [_on_python(usages), _on_memory(usages)]
    if len(rates) > 1:
        sentences.append(_on_numpy(rates, usages))
    sentences.append(_on_others(n_workers, usages))
    return [sentence for sentence in sentences if sentence]
