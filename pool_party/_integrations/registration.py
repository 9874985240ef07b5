"""Registering the backends of other libraries, none of which is imported before that."""


def register_joblib_backend(make_default: bool = False) -> None:
    """Register the backend "pool_party" with joblib, so that `joblib.parallel_config(backend="pool_party")` selects it.

    `parallel_config` takes the backend's options, too: `kind`, `policy` and the others of `ComposablePool`, and
    `on_error` and `idle_worker_timeout`; see docs/howto/joblib.md. Does not block, and may be called again.

    Args:
        make_default: Whether joblib uses it, with its default options, where no backend is named.

    Raises:
        ImportError: joblib is not installed.

    Guarantees:
        joblib is imported by this call, and not before. Any thread may make it.
    """
    try:
        import joblib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "register_joblib_backend needs joblib, which is not installed: pip install 'composable-pool[joblib]'"
        ) from error
    from pool_party._integrations import joblib as backend

    backend.register(make_default)
