"""Asks agents for what containers hold and use: the list `usage` of their page /status."""

from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from gpuagent import __version__
from gpuagent.domain.fleet.agent_pods import AgentPod, AgentUnreadableError
from gpuagent.domain.fleet.held_use import HeldUse, read_held_uses
from gpuagent.kube.api.api_errors import connection_words

ANSWER_S = 5.0
"""Longest time for a whole answer. An agent whose driver hangs still answers, because the sums are in its memory."""
MOST_BYTES = 4 << 20
"""A larger page is not read to its end. One with 16 GPUs and 20 containers on each has 200 KB."""
_OK = 200


class _Status(msgspec.Struct):
    """Of the whole page, only what is needed here is decoded."""

    usage: list[dict[str, Any]] | None = None


_decode = msgspec.json.Decoder(_Status).decode


class AgentReader:
    """Reads agents' pages. An asynchronous context manager, which closes its connections."""

    async def __aenter__(self) -> Self:
        """Begin; nothing is opened yet."""
        self._session = aiohttp.ClientSession(
            # Agents close a connection after each answer.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers={"User-Agent": f"gpuscheduler/{__version__}", "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
            # A pod's address is reached directly.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def uses(self, agent: AgentPod) -> tuple[HeldUse, ...]:
        """What containers of the node hold and use. Raises AgentUnreadableError."""
        body = await self._read(f"{agent.url}/status")
        try:
            status = _decode(body)
        except (msgspec.DecodeError, RecursionError) as err:
            raise AgentUnreadableError("what answers at the agent's address is not an agent") from err
        if status.usage is None:
            raise AgentUnreadableError("its agent is of a version that does not report what is used over time")
        return read_held_uses({"usage": status.usage}) or ()

    async def _read(self, url: str) -> bytes:
        """The body of a page. Raises AgentUnreadableError."""
        body = bytearray()
        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                if answer.status != _OK:
                    raise AgentUnreadableError(f"its agent answers with HTTP status {answer.status}")
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise AgentUnreadableError(f"its agent's page is larger than {MOST_BYTES >> 20} MiB")
        except TimeoutError as err:
            raise AgentUnreadableError(f"its agent has not answered within {ANSWER_S:.0f} s") from err
        except aiohttp.ClientConnectorError as err:
            why = connection_words(err.os_error) or "no connection"
            raise AgentUnreadableError(f"its agent cannot be reached: {why}") from err
        except (aiohttp.ClientError, OSError) as err:
            raise AgentUnreadableError("the connection to its agent broke off") from err
        return bytes(body)
