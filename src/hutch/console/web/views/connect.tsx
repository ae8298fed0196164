/** Commands and configurations that connect clients to this server, ready to copy. */

import { session } from "../api.ts";
import { Card, Page, Snippet } from "../ui/basics.tsx";

export default function Connect() {
  const origin = globalThis.location.origin;
  const socket = origin.replace(/^http/, "ws");
  const needsKey = session.value?.needsKey;
  const header = needsKey ? ' -H "Authorization: Bearer $HUTCH_API_KEY"' : "";
  const mcpHeader = needsKey ? ' --header "Authorization: Bearer $HUTCH_API_KEY"' : "";
  const mcpServer = {
    url: `${origin}/mcp`,
    ...(needsKey && { headers: { Authorization: "Bearer ${HUTCH_API_KEY}" } }),
  };
  const entry = (server: object) => JSON.stringify(server, null, 2);
  const python = `import asyncio, ${needsKey ? "os, " : ""}hutch

${needsKey ? 'KEY = os.environ["HUTCH_API_KEY"]\n' : ""}URL = "${socket}/execbox"
CODE = "return await tools.add({a: 1, b: 2})"

async def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with hutch.connect(URL${needsKey ? ", api_key=KEY" : ""}) as h:
        r = await h.run(CODE, tools=[add])
        print(r.result)

asyncio.run(main())`;
  return (
    <Page title="Connect">
      {needsKey && (
        <p class="note">
          <span>
            This server needs a key. Put it into the variable{" "}
            <code>HUTCH_API_KEY</code>; the snippets below read it from there.
          </span>
        </p>
      )}
      <div class="grid">
        <Card title="Coding agents (MCP)">
          <Snippet
            label="Claude Code"
            text={`claude mcp add --transport http hutch ${origin}/mcp${mcpHeader}`}
          />
          <Snippet
            label="Cursor: ~/.cursor/mcp.json"
            text={entry({ mcpServers: { hutch: mcpServer } })}
          />
          <Snippet
            label="VS Code: .vscode/mcp.json"
            text={entry({ servers: { hutch: { type: "http", ...mcpServer } } })}
          />
        </Card>
        <div class="column">
          <Card title="Python">
            <Snippet
              label="Your functions stay in your process"
              text={python}
            />
          </Card>
          <Card title="Command line">
            <Snippet
              label="Code"
              text={`curl ${origin}/run${header && ` \\\n ${header}`} \\
  -H 'Content-Type: application/json' -d '{
  "code": "return n * 2",
  "inputs": {"n": 21}
}'`}
            />
            <Snippet
              label="An npm package as a tool"
              text={`curl ${origin}/execute-tool${header && ` \\\n ${header}`} \\
  -H 'Content-Type: application/json' -d '{
  "packageName": "@tpmjs/tools-template-render",
  "version": "0.1.0",
  "name": "templateRenderTool",
  "params": {
    "template": "Hello {{name}}!",
    "data": {"name": "Bo"}
  }
}'`}
            />
            <Snippet label="Is it up?" text={`curl ${origin}/health`} />
          </Card>
        </div>
      </div>
    </Page>
  );
}
