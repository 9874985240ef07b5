"""The log of pool_party: the logger of that name, whose module is imported when there is something to say."""


def log_exception(message: str, *args: object) -> None:
    """Logs an error, with the exception that is being handled."""
    import logging

    logging.getLogger("pool_party").exception(message, *args, stacklevel=2)
