"""The logger "pool_party". The logging module is imported only when there is something to log."""


def log_exception(message: str, *args: object) -> None:
    """Log an error, with the exception that is being handled."""
    import logging

    logging.getLogger("pool_party").exception(message, *args, stacklevel=2)
