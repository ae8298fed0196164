"""Egress policies of the operator: none, allowlist, and stricter rules for some packages."""

from __future__ import annotations

from pathlib import Path

from tests.contract.tpmjs.harness import SyncServer, server_with_registry, tool

FETCH = tool("return (await fetch(params.url)).status")


async def test_egress_none(sync: SyncServer, tmp_path: Path) -> None:
    async with server_with_registry(tmp_path, egress="none", egress_allow=sync.address) as server:
        url = f"{sync.url}/ready/off"
        for source in (
            FETCH,
            tool(
                "return await new Promise((resolve, reject) =>"
                " get(params.url, (answer) => resolve(answer.statusCode)).on('error', reject))",
                "import { get } from 'node:http';",
            ),
        ):
            answer = await server.run(source, params={"url": url})
            assert answer["error"]["code"] == "TOOL_EXECUTION_ERROR"
            assert "Network access is off for this tool" in answer["error"]["message"]
        assert (await server.run(tool("return 'works'")))["output"] == "works"


async def test_package_egress_restricts_some_packages(sync: SyncServer, tmp_path: Path) -> None:
    narrower = "quiet=none,narrow=other.invalid:80"
    settings = {"egress": "allowlist", "egress_allow": sync.address, "package_egress": narrower}
    async with server_with_registry(tmp_path, **settings) as server:
        for name in ("quiet", "narrow", "free"):
            server.npm.publish(name, files={"index.js": FETCH})
        there, elsewhere = f"{sync.url}/ready/there", "http://name.invalid/"
        assert (await server.execute("free", params={"url": there}))["output"] == 200
        for name, url, reason in (
            ("free", elsewhere, "name.invalid:80 is not in the list of permitted hosts"),
            ("quiet", there, "Network access is off for this tool"),
            ("narrow", there, "is not permitted for this package"),
        ):
            answer = await server.execute(name, params={"url": url})
            assert reason in answer["error"]["message"], name
        lookups = tool(
            "const lookup = (name) => dns.lookup(name).then(({ address }) => address, ({ code }) => code);"
            " return Promise.all(['localhost', 'name.invalid'].map(lookup))",
            "import dns from 'node:dns/promises';",
        )
        assert (await server.run(lookups))["output"] == ["127.0.0.1", "ENOTFOUND"]
        failure = tool(
            "try { await fetch(params.url) } catch ({ message, cause }) { return [message, cause.code] }"
        )
        answer = await server.run(failure, params={"url": elsewhere})
        assert answer["output"] == ["fetch failed", "EACCES"]
