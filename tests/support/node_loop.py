"""An asyncio loop that a test has turn."""

import asyncio


def turn(loop: asyncio.AbstractEventLoop, seconds: float = 0) -> None:
    """Make the calls that are due now, and those that come within so many seconds."""
    # time: the pace of whoever waits for something, or a while in which nothing is to happen
    loop.run_until_complete(asyncio.sleep(seconds))
