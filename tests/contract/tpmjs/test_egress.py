"""What tools may reach, as the operator says: nothing, a list, or less for some packages."""

from __future__ import annotations

from pathlib import Path

from tests.contract.tpmjs.served import Meeting, made_up, tool

FETCH = tool("return (await fetch(params.url)).status")


async def test_nothing(meet: Meeting, tmp_path: Path) -> None:
    async with made_up(tmp_path, egress="none", egress_allow=meet.address) as server:
        url = f"{meet.url}/said/off"
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


async def test_less_for_some_packages(meet: Meeting, tmp_path: Path) -> None:
    narrower = "quiet=none,narrow=other.invalid:80"
    settings = {"egress": "allowlist", "egress_allow": meet.address, "package_egress": narrower}
    async with made_up(tmp_path, **settings) as server:
        for name in ("quiet", "narrow", "free"):
            server.npm.publish(name, files={"index.js": FETCH})
        there, elsewhere = f"{meet.url}/said/there", "http://name.invalid/"
        assert (await server.execute("free", params={"url": there}))["output"] == 200
        for name, url, reason in (
            ("free", elsewhere, "name.invalid:80 is not on the list of what tools may reach"),
            ("quiet", there, "Network access is off for this tool"),
            ("narrow", there, "is not among what this package may reach"),
        ):
            answer = await server.execute(name, params={"url": url})
            assert reason in answer["error"]["message"], name
