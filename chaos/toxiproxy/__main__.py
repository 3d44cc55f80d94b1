"""``python -m raytwin.chaos.toxiproxy``: the server, with the options of the real one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

from raytwin.chaos.toxiproxy.api import API_VERSION, Api
from raytwin.chaos.toxiproxy.http_server import listen


async def serve(host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address is taken."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await listen(Api(), host, port)
    address = server.sockets[0].getsockname()
    print(f"serving the API of Toxiproxy {API_VERSION} on {address[0]}:{address[1]}", flush=True)
    await stop.wait()


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(
        prog="python -m raytwin.chaos.toxiproxy", description="A server of Toxiproxy's HTTP API."
    )
    parser.add_argument("-host", "--host", default="localhost", help="address of the HTTP API")
    parser.add_argument("-port", "--port", default=8474, type=int, help="its port; 0 is a free one")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        asyncio.run(serve(options.host, options.port))
    except (OSError, OverflowError) as error:
        parser.error(f"cannot listen on {options.host}:{options.port}: {error}")


if __name__ == "__main__":
    main()
