"""Waiting for a condition with a deadline: the only place in these tests that lets time pass."""

import select
import time

STEP_S = 0.01  # between two looks; small against every time that the tests check


def wait_until(condition, seconds, what):
    """Returns condition()'s first true value; AssertionError naming `what` after `seconds`.

    `what` may be a function: it is then asked once the time is up, so that it can say what it saw.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {seconds} s: {text}")
        select.select([], [], [], STEP_S)
