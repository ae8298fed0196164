/** MCP servers and one of their tools. */

import { useState } from "preact/hooks";
import { post } from "../../api.ts";
import { visible } from "../../format.ts";
import { link } from "../../router.ts";
import { Badge, Card, Copy, Json } from "../../ui/basics.tsx";
import type { Schema } from "../../ui/schema_form.tsx";
import { CallForm } from "./call.tsx";

export interface ServerStatus {
  name: string;
  title?: string | null;
  state: string;
  error?: string | null;
  warnings: string[];
  tools: number;
}

export interface McpTool {
  serverName: string;
  toolName: string;
  qualifiedName: string;
  scriptName: string;
  description?: string | null;
  inputSchema: Schema | null;
  outputSchema: Schema | null;
}

export function ServerTiles({ servers }: { servers: ServerStatus[] }) {
  return (
    <div class="tiles">
      {servers.map((server) => (
        <div class="tile" key={server.name}>
          <div class="card-head">
            <strong>{visible(server.title ?? server.name)}</strong>
            <Badge state={server.state} />
          </div>
          <div class="tile-detail">{server.tools} tools</div>
          {[server.error, ...server.warnings].filter(Boolean).map((text) => (
            <div class="tile-error" key={text}>{visible(text!)}</div>
          ))}
        </div>
      ))}
    </div>
  );
}

export function TryMcpTool({ tool }: { tool: McpTool }) {
  const [value, setValue] = useState<Record<string, unknown> | undefined>({});
  const call = async (value: Record<string, unknown>) => ({
    result: await post(`/tools/${encodeURIComponent(tool.qualifiedName)}`, value),
  });
  const script = `return await ${tool.scriptName}(${JSON.stringify(value ?? {}, null, 2)});`;
  return (
    <Card
      title={<code>{visible(tool.scriptName)}</code>}
      actions={
        <>
          <Copy label="Copy as code" text={script} />
          <a href={link(["runs"], { tool: `${tool.serverName}.${tool.toolName}` })}>Runs that called it</a>
        </>
      }
    >
      {tool.description && <p class="description">{visible(tool.description)}</p>}
      <CallForm schema={tool.inputSchema ?? {}} label="Call the tool" call={call} onValue={setValue} />
      <details>
        <summary>Schema</summary>
        <Json value={{ input: tool.inputSchema, output: tool.outputSchema }} />
      </details>
    </Card>
  );
}
