/** Installed npm packages: facts, tools with forms, installing and removing. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, post, remove } from "../../api.ts";
import { formatBytes, formatCount, visible } from "../../format.ts";
import { link, navigate } from "../../router.ts";
import { Age, Button, Card, ErrorNote, Field, Json } from "../../ui/basics.tsx";
import { useData } from "../../ui/load.ts";
import type { Schema } from "../../ui/schema_form.tsx";
import { CallForm } from "./call.tsx";

export interface InstalledPackage {
  name: string;
  version: string;
  bytes: number;
  files: number;
  installedAt: string;
  usedAt: string;
  knownAs: string[];
}

interface PackageTools {
  tools: { name: string; description: string }[];
  spares: number;
}

export function PackageDetail(
  { installed, onChange }: { installed: InstalledPackage; onChange: () => void },
) {
  const { name, version } = installed;
  const path = `/console/packages/${encodeURIComponent(`${name}@${version}`)}`;
  const detail = useData<PackageTools>(path);
  const [error, setError] = useState<unknown>();
  const [tool, setTool] = useState("");
  const tools = detail.data?.tools ?? [];
  const chosen = tool || tools[0]?.name || "default";
  const uninstall = async () => {
    if (!confirm(`Remove ${name}@${version}? The next call installs it again.`)) return;
    try {
      await remove(path);
      navigate(["tools"]);
      onChange();
    } catch (error) {
      setError(error);
    }
  };
  return (
    <Card
      title={<code>{visible(`${name}@${version}`)}</code>}
      actions={
        <>
          <a href={link(["runs"], { label: `${name}@${version}*` })}>Its runs</a>
          <Button small kind="danger" onClick={uninstall}>Remove</Button>
        </>
      }
    >
      {error !== undefined && <ErrorNote error={error} />}
      {detail.error !== undefined && <ErrorNote error={detail.error} retry={detail.reload} />}
      <dl class="facts">
        <dt>Size</dt>
        <dd>{formatBytes(installed.bytes)}, {formatCount(installed.files)} files</dd>
        <dt>Installed</dt>
        <dd>
          <Age time={installed.installedAt} />
        </dd>
        <dt>Last used</dt>
        <dd>
          <Age time={installed.usedAt} />
        </dd>
        <dt>Known as</dt>
        <dd>{installed.knownAs.length ? visible(installed.knownAs.join(", ")) : "–"}</dd>
        <dt>Spares</dt>
        <dd>{detail.data ? formatCount(detail.data.spares) : "–"}</dd>
      </dl>
      {detail.data && (
        <Field
          label="Tool"
          hint={tools.length ? undefined : "package.json lists no tools. Type the name of an export."}
        >
          {tools.length
            ? (
              <select value={chosen} onChange={(event) => setTool(event.currentTarget.value)}>
                {tools.map(({ name }) => <option key={name} value={name}>{visible(name)}</option>)}
              </select>
            )
            : <input value={chosen} onChange={(event) => setTool(event.currentTarget.value)} />}
        </Field>
      )}
      {detail.data && <TryPackageTool key={chosen} package={name} version={version} tool={chosen} />}
    </Card>
  );
}

interface Description {
  description: string;
  inputSchema: Schema;
}

/** Loads the description of a tool, which runs the package's code in the sandbox. */
function TryPackageTool(
  { package: packageName, version, tool }: { package: string; version: string; tool: string },
) {
  const [described, setDescribed] = useState<{ tool?: Description; error?: unknown }>();
  useEffect(() => {
    let isCurrent = true;
    post("/load-and-describe", { packageName, version, name: tool }).then(
      (body) => isCurrent && setDescribed({ tool: checked(body).tool }),
      (error) => isCurrent && setDescribed({ error }),
    ).catch((error) => isCurrent && setDescribed({ error }));
    return () => {
      isCurrent = false;
    };
  }, [packageName, version, tool]);
  if (!described) return <p class="quiet">Loading the tool…</p>;
  if (described.error !== undefined) return <ErrorNote error={described.error} />;
  const schema = described.tool?.inputSchema ?? {};
  const call = async (params: Record<string, unknown>) => {
    const body = checked(await post("/execute-tool", { packageName, version, name: tool, params }));
    return { result: body.output, runId: body.runId };
  };
  return (
    <>
      {described.tool?.description && <p class="description">{visible(described.tool.description)}</p>}
      <CallForm schema={schema} label="Call the tool" call={call} />
      <details>
        <summary>Schema</summary>
        <Json value={schema} />
      </details>
    </>
  );
}

/** Returns the body of a TPMJS response. Throws its error if the tool failed. */
function checked(body: any): any {
  if (body.success !== false) return body;
  const error = body.error;
  throw new ApiError(200, error?.code ?? "ERROR", error?.message ?? String(error), body);
}

export function InstallPackage({ onInstalled }: { onInstalled: () => void }) {
  const [name, setName] = useState("");
  const [state, setState] = useState<{ installing?: boolean; error?: unknown }>({});
  const install = async (event: Event) => {
    event.preventDefault();
    setState({ installing: true });
    try {
      const installed = await post("/console/packages", { package: name.trim() });
      setState({});
      setName("");
      onInstalled();
      navigate(["tools", "npm", `${installed.name}@${installed.version}`]);
    } catch (error) {
      setState({ error });
    }
  };
  return (
    <form class="install" onSubmit={install}>
      <input
        aria-label="npm package to install"
        placeholder="name or name@version"
        value={name}
        onInput={(event) => setName(event.currentTarget.value)}
      />
      <Button small type="submit" disabled={!name.trim() || state.installing}>
        {state.installing ? "Installing…" : "Install"}
      </Button>
      {state.error !== undefined && <ErrorNote error={state.error} />}
    </form>
  );
}
