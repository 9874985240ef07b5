"""The settings that are applied in this process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._patching.settings import Settings

_settings: Settings | None = None


def current() -> Settings | None:
    """Return the settings that are applied, or None if no patch is installed."""
    return _settings


def change(settings: Settings | None) -> None:
    """Note what is applied now. `apply.py` calls this."""
    global _settings
    _settings = settings


def is_wanted(part: str) -> bool:
    """Whether the settings ask for a part."""
    return _settings is not None and (not _settings.only or part in _settings.only) and part not in _settings.excluded
