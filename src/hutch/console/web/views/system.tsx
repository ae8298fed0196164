/** Versions, the self-test of the sandbox, and every setting in force. */

import { useState } from "preact/hooks";
import { post } from "../api.ts";
import { visible } from "../format.ts";
import { Badge, Broken, Button, Card, ErrorNote, Page } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";

interface Setting {
  name: string;
  value: unknown;
  default: unknown;
  source: string;
}

interface JailCheck {
  name: string;
  ok: boolean;
  detail: string;
  required: boolean;
}

interface SystemState {
  version: string;
  isolation: string;
  deno: string;
  selfTest: { seccomp: boolean; cgroup: string | null; bwrap: string | null; checks: JailCheck[] };
  settings: Setting[];
}

export default function System() {
  const { data, error, reload } = useData<SystemState>("/console/system");
  if (error) return <Broken title="System" error={error} retry={reload} />;
  if (!data) return null;
  const { selfTest } = data;
  return (
    <Page title="System">
      <div class="grid">
        <div class="column">
          <Card title="Isolation">
            <dl class="facts">
              <dt>Isolation</dt>
              <dd>
                <Badge state={data.isolation === "container" ? "ok" : "weak"}>{data.isolation}</Badge>
              </dd>
              <dt>System call filter</dt>
              <dd>{selfTest.seccomp ? "on" : "off"}</dd>
              <dt>Control groups</dt>
              <dd>{selfTest.cgroup ?? "none"}</dd>
              <dt>Hutch</dt>
              <dd>{data.version}</dd>
              <dt>Deno</dt>
              <dd>{data.deno}</dd>
              <dt>bubblewrap</dt>
              <dd>{selfTest.bwrap ?? "not installed"}</dd>
            </dl>
          </Card>
          <Doctor />
        </div>
        <Card title="Self-test of the jail">
          <table class="table narrow-rows">
            <tbody>
              {selfTest.checks.map((check) => (
                <tr key={check.name}>
                  <td>
                    <Badge state={check.ok ? "ok" : check.required ? "failed" : "waiting"}>
                      {check.ok ? "held" : "failed"}
                    </Badge>
                  </td>
                  <td class="name">{check.name}</td>
                  <td class="quiet">{visible(check.detail)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Card>
      </div>
      <Settings settings={data.settings} />
    </Page>
  );
}

interface Finding {
  name: string;
  state: "ok" | "weak" | "missing";
  found: string;
  todo: string;
}

const FINDING_STATES = { ok: "ok", weak: "waiting", missing: "failed" };

/** Checks the machine again, and says what to do about each problem. */
function Doctor() {
  const [findings, setFindings] = useState<Finding[]>();
  const [error, setError] = useState<unknown>();
  const [isRunning, setIsRunning] = useState(false);
  const check = async () => {
    setIsRunning(true);
    setError(undefined);
    await post<{ findings: Finding[] }>("/console/doctor").then(
      ({ findings }) => setFindings(findings),
      setError,
    );
    setIsRunning(false);
  };
  const problems = findings?.filter(({ state, todo }) => state !== "ok" || todo) ?? [];
  return (
    <Card
      title="Doctor"
      actions={
        <Button small onClick={check} disabled={isRunning}>{isRunning ? "Checking…" : "Check now"}</Button>
      }
    >
      {error !== undefined && <ErrorNote error={error} />}
      {!findings && (
        <p class="quiet">
          Checks this machine anew, as the command <code>hutch doctor</code> does.
        </p>
      )}
      {findings && !problems.length && <p>All {findings.length} checks are fine.</p>}
      {problems.length > 0 && (
        <table class="table narrow-rows">
          <tbody>
            {problems.map(({ name, state, found, todo }) => (
              <tr key={name}>
                <td>
                  <Badge state={FINDING_STATES[state] ?? "failed"}>{state}</Badge>
                </td>
                <td class="name">{name}</td>
                <td>
                  {visible(found)} {todo && <p class="quiet">{visible(todo)}</p>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Card>
  );
}

function Settings({ settings }: { settings: Setting[] }) {
  const [text, setText] = useState("");
  const shown = settings.filter((setting) => setting.name.includes(text.trim().toLowerCase()));
  const changed = shown.filter((setting) => setting.source !== "default");
  const others = shown.filter((setting) => setting.source === "default");
  const search = (
    <input
      type="search"
      placeholder="Search settings"
      aria-label="Search settings"
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
    />
  );
  return (
    <Card title="Settings in force" actions={search}>
      <div class="scroll">
        <table class="table narrow-rows settings">
          <thead>
            <tr>
              <th>Setting</th>
              <th>Value</th>
              <th>From</th>
            </tr>
          </thead>
          <tbody>
            {[...changed, ...others].map((setting) => (
              <tr key={setting.name}>
                <td>
                  <code>{setting.name}</code>
                </td>
                <td>
                  <code>{visible(formatValue(setting.value))}</code>
                </td>
                <td class={setting.source === "default" ? "quiet" : ""}>{visible(setting.source)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function formatValue(value: unknown): string {
  const text = JSON.stringify(value);
  return text === "null" || text === "[]" || text === "{}" ? "–" : typeof value === "string" ? value : text;
}
