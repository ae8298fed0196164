/** MCP servers and their tools, with forms to try them. */

import { useEffect, useState } from "preact/hooks";
import { post } from "../api.ts";
import { formatDuration, visible } from "../format.ts";
import { link, location, navigate, setQuery } from "../router.ts";
import { Badge, Button, Card, Copy, Empty, ErrorNote, Json, Page } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import { type Schema, SchemaForm } from "../ui/schema_form.tsx";

interface ServerStatus {
  name: string;
  title?: string | null;
  state: string;
  error?: string | null;
  warnings: string[];
  tools: number;
}

interface Tool {
  serverName: string;
  toolName: string;
  qualifiedName: string;
  scriptName: string;
  description?: string | null;
  inputSchema: Schema | null;
  outputSchema: Schema | null;
}

const REFRESH_MS = 5_000;
const TYPING_MS = 200;

export default function Tools() {
  const status = useData<{ servers: ServerStatus[] }>("/status", REFRESH_MS);
  const text = location.value.query.get("text") ?? "";
  const all = useData<Tool[]>("/tools");
  const found = useData<{ results?: { tool: Tool }[] } | { tool: Tool }[]>(
    text ? `/search?q=${encodeURIComponent(text)}&limit=50` : undefined,
  );
  const results = Array.isArray(found.data) ? found.data : found.data?.results;
  const tools = text ? results?.map(({ tool }) => tool) : all.data;
  const selected = location.value.path[1];
  const tool = all.data?.find((tool) => tool.qualifiedName === selected);
  if (status.error) return <ErrorNote error={status.error} retry={status.reload} />;
  if (!status.data) return null;
  if (!status.data.servers.length) return <NoServers />;
  return (
    <Page wide title="Tools" actions={<Search text={text} />}>
      <Servers servers={status.data.servers} />
      <div class="two-columns">
        <Card title={`Tools${tools ? ` (${tools.length})` : ""}`}>
          {tools?.length === 0 && <Empty title="No tool matches" />}
          <div class="pick-list">
            {tools?.map((tool) => (
              <button
                type="button"
                key={tool.qualifiedName}
                class={tool.qualifiedName === selected ? "pick pick-current" : "pick"}
                aria-pressed={tool.qualifiedName === selected}
                onClick={() => navigate(["tools", tool.qualifiedName], { text: text || undefined })}
              >
                <code>{visible(tool.scriptName.replace(/^tools\./, ""))}</code>
                <small>{visible(tool.description?.split("\n")[0].slice(0, 200) ?? "")}</small>
              </button>
            ))}
          </div>
        </Card>
        {tool ? <TryTool key={tool.qualifiedName} tool={tool} /> : (
          <Card>
            <Empty
              title={selected && all.data ? "There is no such tool" : "Choose a tool to see and try it"}
            />
          </Card>
        )}
      </div>
    </Page>
  );
}

function NoServers() {
  return (
    <Page title="Tools">
      <Card>
        <Empty title="This server knows no MCP servers">
          <p>
            List them in <code>~/.toolscript.json</code> as an MCP client would, or start with{" "}
            <code>hutch serve --config FILE</code>.
          </p>
        </Empty>
      </Card>
    </Page>
  );
}

function Search({ text }: { text: string }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    if (typed === text) return;
    const timer = setTimeout(() => setQuery({ text: typed || undefined }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <input
      type="search"
      placeholder="What do you want to do?"
      aria-label="Search tools"
      value={typed}
      onInput={(event) => setTyped(event.currentTarget.value)}
    />
  );
}

function Servers({ servers }: { servers: ServerStatus[] }) {
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

interface CallState {
  result?: unknown;
  error?: unknown;
  ms?: number;
  running?: boolean;
}

function TryTool({ tool }: { tool: Tool }) {
  const [value, setValue] = useState<Record<string, unknown> | undefined>({});
  const [call, setCall] = useState<CallState>();
  const run = async () => {
    setCall({ running: true });
    const began = performance.now();
    try {
      const result = await post(`/tools/${encodeURIComponent(tool.qualifiedName)}`, value);
      setCall({ result, ms: performance.now() - began });
    } catch (error) {
      setCall({ error, ms: performance.now() - began });
    }
  };
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
      <SchemaForm schema={tool.inputSchema ?? {}} onChange={setValue} />
      <div class="actions">
        <Button kind="primary" onClick={run} disabled={value === undefined || call?.running}>
          Call the tool
        </Button>
        {call?.running && <span class="quiet">Calling…</span>}
        {call?.ms !== undefined && <span class="quiet">{formatDuration(call.ms)}</span>}
      </div>
      {call?.error !== undefined && <ErrorNote error={call.error} />}
      {call && "result" in call && <Json value={call.result} />}
      <details>
        <summary>Schema</summary>
        <Json value={{ input: tool.inputSchema, output: tool.outputSchema }} />
      </details>
    </Card>
  );
}
