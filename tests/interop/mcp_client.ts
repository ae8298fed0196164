// Uses an MCP server with a published client, and prints what the client saw as JSON.
// Arguments: `sdk` (protocols before 2026-07-28) or `client` (2026-07-28), and the URL of the server.
import { Client as OldClient } from "npm:@modelcontextprotocol/sdk@1.32.2/client/index.js";
import { StreamableHTTPClientTransport as OldTransport } from "npm:@modelcontextprotocol/sdk@1.32.2/client/streamableHttp.js";
import { ElicitRequestSchema } from "npm:@modelcontextprotocol/sdk@1.32.2/types.js";
import { Client, StreamableHTTPClientTransport } from "npm:@modelcontextprotocol/client@2.4.0";

const [library, url] = Deno.args;
const isOld = library === "sdk";
const name = { name: "interop", version: "1" };
const questions: string[] = [];

function answer(request: any) {
  questions.push(request.params.message);
  return { action: "accept", content: {} };
}

async function connect(canAsk: boolean): Promise<any> {
  const capabilities = canAsk ? { elicitation: { form: {} } } : {};
  const client: any = isOld ? new OldClient(name, { capabilities }) : new Client(name, {
    capabilities,
    versionNegotiation: { mode: { pin: "2026-07-28" } },
  });
  if (canAsk) client.setRequestHandler(isOld ? ElicitRequestSchema : "elicitation/create", answer);
  const Transport: any = isOld ? OldTransport : StreamableHTTPClientTransport;
  await client.connect(new Transport(new URL(url)));
  return client;
}

async function call(client: any, name: string, args: unknown, options = {}): Promise<string> {
  const params = { name, arguments: args };
  const result =
    await (isOld ? client.callTool(params, undefined, options) : client.callTool(params, options));
  return result.content[0].text;
}

const client = await connect(true);
const tools = (await client.listTools()).tools.map((tool: { name: string }) => tool.name);

const order = "return (await tools.shop.order({ article: 'lamp', count: 2 })).total";
const approved: Record<string, string> = {};
for (const language of ["javascript", "toolscript"]) {
  approved[language] = await call(client, "run_code", { code: order, language, check: false });
}

const progress: string[] = [];
const code = "await tools.shop.getPrice({ article: 'desk' }); return 'done'";
await call(client, "run_code", { code, language: "javascript" }, {
  onprogress: (update: { message?: string }) => progress.push(update.message ?? ""),
});

// Cancel the code when the progress of its first tool call is reported. At that time, the code is certainly
// running.
const abort = new AbortController();
const endless = `${code.slice(0, code.indexOf(";"))}; await new Promise((go) => setTimeout(go, 60000))`;
const cancelled = await call(client, "run_code", { code: endless, language: "javascript" }, {
  signal: abort.signal,
  onprogress: () => abort.abort("the user has changed their mind"),
}).catch((error: unknown) => String(error));
// Close the client only after the run was cancelled, because the older client sends the cancellation in the
// background.
async function outcomes(): Promise<string[]> {
  const { runs } = await (await fetch(new URL("/runs", url))).json();
  return runs.map((run: { outcome: string }) => run.outcome);
}
while (!(await outcomes()).includes("cancelled"));
await client.close();

// A client that cannot ask its user.
const silent = await connect(false);
const waiting: Record<string, string> = {};
for (const language of ["javascript"]) {
  const text = await call(silent, "run_code", { code: order, language, check: false });
  const runId = /continue_run with run_id (\S+) /.exec(text)![1];
  const approvals = await (await fetch(new URL("/approvals", url))).json();
  const { id } = approvals.find((each: { run: string }) => each.run === runId);
  const decided = await fetch(new URL(`/approvals/${id}`, url), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ decision: "allow" }),
  });
  await decided.body?.cancel();
  waiting[language] = await call(silent, "continue_run", { run_id: runId });
}
await silent.close();

console.log(JSON.stringify({ tools, approved, questions, progress, cancelled, waiting }));
Deno.exit(0);
