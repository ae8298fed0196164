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
  const python = `import asyncio, hutch

async def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with hutch.connect("${socket}/execbox"${
    needsKey ? ", api_key=os.environ['HUTCH_API_KEY']" : ""
  }) as h:
        r = await h.run("return await tools.add({a: 1, b: 2})", tools=[add])
        print(r.result)

asyncio.run(main())`;
  return (
    <Page title="Connect">
      {needsKey && (
        <p class="note">
          This server needs a key. Put it into the variable{" "}
          <code>HUTCH_API_KEY</code>; the snippets below read it from there.
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
        <Card title="Python">
          <Snippet
            label="Your functions stay in your process"
            text={needsKey ? `import os\n${python}` : python}
          />
        </Card>
        <Card title="Command line">
          <Snippet
            label="An npm package as a tool"
            text={`curl ${origin}/execute-tool -H 'Content-Type: application/json'${header} -d '{
  "packageName": "@tpmjs/tools-template-render", "version": "0.1.0", "name": "templateRenderTool",
  "params": {"template": "Hello {{name}}!", "data": {"name": "Bo"}}
}'`}
          />
          <Snippet label="Is it up?" text={`curl ${origin}/health`} />
        </Card>
      </div>
    </Page>
  );
}
