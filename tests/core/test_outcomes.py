"""The exceptions that outcomes without a result become where they are raised."""

import multiprocessing.pool
import pickle
import threading

from pool_party import RemoteError, _native
from pool_party._core.outcomes import error_of, future_error_of
from pool_party._workers import loop


def outcome_of(result):
    """What a worker sends for a result that does not pickle."""
    try:
        pickle.dumps(result)
    except Exception as error:
        return _native.STATUS_UNENCODABLE, loop.describe_unencodable(error, result)
    raise AssertionError("it pickles")


class WithOwnError:
    def __reduce__(self):
        raise KeyError("my own", "reason")

    def __repr__(self):
        return "<a value>"


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("nor does the error")


class WithUnpicklableError:
    def __reduce__(self):
        raise UnpicklableError("lost")


def test_a_pool_tells_of_a_result_that_does_not_pickle():
    error = error_of(*outcome_of(WithOwnError()))
    assert type(error) is multiprocessing.pool.MaybeEncodingError
    assert str(error) == "Error sending result: '<a value>'. Reason: 'KeyError('my own', 'reason')'"


def test_an_executor_raises_the_reason_why_a_result_does_not_pickle():
    error = future_error_of(*outcome_of(WithOwnError()))
    assert type(error) is KeyError and error.args == ("my own", "reason")
    assert isinstance(error.__cause__, multiprocessing.pool.RemoteTraceback)
    assert "in __reduce__" in str(error.__cause__) and "my own" in str(error.__cause__)
    assert type(future_error_of(*outcome_of(threading.Lock()))) is TypeError


def test_a_reason_that_does_not_pickle_either():
    error = future_error_of(*outcome_of(WithUnpicklableError()))
    assert type(error) is RemoteError and "UnpicklableError('lost')" in str(error)
    assert "in __reduce__" in str(error.__cause__)


def test_an_exception_that_does_not_pickle_says_why():
    error = error_of(_native.STATUS_FAILED, loop.describe(ValueError(threading.Lock())))
    assert type(error) is RemoteError and "cannot pickle" in str(error)


def test_the_repr_of_a_large_value_is_cut():
    _, (_, text, *_) = outcome_of([threading.Lock(), "x" * 1_000_000])
    assert len(text) < 11_000 and text.endswith(" characters)")


def test_both_raise_the_same_for_all_other_outcomes():
    try:
        raise ValueError("of the task")
    except ValueError as error:
        description = loop.describe(error)
    failures = [function(_native.STATUS_FAILED, description) for function in (error_of, future_error_of)]
    assert [(type(error), error.args) for error in failures] == [(ValueError, ("of the task",))] * 2
    for function in (error_of, future_error_of):
        kept = loop.keep(failures[0])
        assert function(_native.STATUS_FAILED, kept) is failures[0]  # the same object, by reference
        lost = function(_native.STATUS_OK, EOFError("cut off"))
        assert type(lost) is RemoteError and isinstance(lost.__cause__, EOFError)


def test_an_error_that_its_worker_could_not_describe_says_so():
    error = error_of(
        _native.STATUS_FAILED, (None, "an exception that could not be described", "describing it raised X")
    )
    assert type(error) is RemoteError and "its worker could not encode it" in str(error)
    assert "describing it raised X" in str(error.__cause__)
