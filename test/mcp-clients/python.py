"""The official Python SDK against a server whose sandboxes know a few words. What differs from the expectation raises.

usage: python python.py http URL
       python python.py stdio COMMAND ARGUMENT...
"""

import asyncio
import contextlib
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

kind, target, *rest = sys.argv[1:]


@contextlib.asynccontextmanager
async def streams():
    if kind == "http":
        async with create_mcp_http_client(headers={"X-Session-ID": "python-http"}) as http:
            async with streamable_http_client(target, http_client=http) as (read, write, *_):
                yield read, write
    else:
        server = StdioServerParameters(command=target, args=[*rest, "--session-id=python-stdio"])
        async with stdio_client(server) as (read, write):
            yield read, write


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


async def converse(session):
    await session.initialize()
    tools = (await session.list_tools()).tools
    same([tool.name for tool in tools], ["bash"])

    async def bash(**arguments):
        return await session.call_tool("bash", arguments)

    hello = await bash(command="echo hello")
    same(hello.structured_content["stdout"], "hello\n")
    same(json.loads(hello.content[0].text), hello.structured_content)
    same(bool(hello.is_error), False)

    failed = await bash(command="exit 3")
    same((failed.is_error, failed.structured_content["exit_code"]), (True, 3))

    refused = await bash(command="echo", timeout=301)
    same((refused.is_error, "1 to 300" in refused.content[0].text), (True, True))

    output = []

    async def show(progress, total, message):
        output.append(message)

    await session.call_tool("bash", {"command": "stream"}, progress_callback=show)
    same("".join(output), "one\ntwo\nthree\n")

    hanging = asyncio.create_task(bash(command="hang"))
    await asyncio.sleep(0.5)
    hanging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await hanging
    while "hang" not in (await bash(command="stopped")).structured_content["stdout"]:
        await asyncio.sleep(0.05)


async def main():
    async with streams() as (read, write), ClientSession(read, write) as session:
        await converse(session)
    print("ok")


asyncio.run(main())
