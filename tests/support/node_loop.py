"""Run an asyncio loop step by step."""

import asyncio


def turn(loop: asyncio.AbstractEventLoop, seconds: float = 0) -> None:
    """Run the calls that are due now, and those that become due within so many seconds."""
    # time: the pace of whoever waits for something, or a while in which nothing is to happen
    loop.run_until_complete(asyncio.sleep(seconds))
