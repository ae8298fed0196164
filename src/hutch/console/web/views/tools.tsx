/** Tools of MCP servers, npm packages and abilities: one list, one search, and forms to try them. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { session } from "../api.ts";
import { visible } from "../format.ts";
import { location, navigate, setQuery } from "../router.ts";
import { Broken, Card, Empty, Page, Tabs } from "../ui/basics.tsx";
import { useData } from "../ui/load.ts";
import { type Ability, AbilityDetail } from "./tools/abilities.tsx";
import { type McpTool, type ServerStatus, ServerTiles, TryMcpTool } from "./tools/mcp.tsx";
import { type InstalledPackage, InstallPackage, PackageDetail } from "./tools/packages.tsx";

const REFRESH_MS = 5_000;
const TYPING_MS = 200;

type Kind = "mcp" | "npm" | "abilities";

interface Item {
  kind: Kind;
  /** Identifies the item in the URL. */
  id: string;
  title: string;
  description: string;
}

export default function Tools() {
  const isAdmin = session.value?.role === "admin";
  const status = useData<{ servers: ServerStatus[] }>(isAdmin ? "/status" : undefined, REFRESH_MS);
  const mcp = useData<McpTool[]>(isAdmin ? "/tools" : undefined);
  const npm = useData<{ packages: InstalledPackage[] }>(
    isAdmin ? "/console/packages" : undefined,
    REFRESH_MS,
  );
  const abilities = useData<{ abilities: any[] }>(isAdmin ? "/console/abilities" : "/my/abilities");
  const { path, query } = location.value;
  const text = query.get("text") ?? "";
  const found = useData<{ results?: { tool: McpTool }[] } | { tool: McpTool }[]>(
    text && isAdmin ? `/search?q=${encodeURIComponent(text)}&limit=50` : undefined,
  );
  const error = status.error ?? npm.error ?? abilities.error;
  if (error) return <Broken title="Tools" error={error} retry={abilities.reload} />;
  if (!abilities.data || (isAdmin && (!status.data || !npm.data))) return null;
  const listed = abilities.data.abilities.map(toAbility);
  const results = Array.isArray(found.data) ? found.data : found.data?.results;
  const packages = npm.data?.packages ?? [];
  const items: Record<Kind, Item[]> = {
    mcp: ((text ? results?.map(({ tool }) => tool) : mcp.data) ?? []).map(mcpItem),
    npm: packages.map(packageItem).filter((item) => matches(item, text)),
    abilities: listed.map(abilityItem).filter((item) => matches(item, text)),
  };
  const kinds: Kind[] = isAdmin ? ["mcp", "npm", "abilities"] : ["abilities"];
  const shown = kinds.find((kind) => kind === query.get("kind"));
  const [, kind, id] = path;
  return (
    <Page wide title="Tools" actions={<Search text={text} />}>
      {isAdmin && <ServerTiles servers={status.data!.servers} />}
      <div class="two-columns">
        <Card>
          <Tabs
            current={shown ?? "all"}
            onSelect={(id) => setQuery({ kind: id === "all" ? undefined : id })}
            tabs={[
              { id: "all", label: "All" },
              ...kinds.map((kind) => ({ id: kind, label: `${SHORT[kind]} ${items[kind].length}` })),
            ]}
          />
          {(shown ? [shown] : kinds).map((kind) => (
            <Group key={kind} kind={kind} items={items[kind]} selected={id} text={text} short={!shown}>
              {kind === "npm" && <InstallPackage onInstalled={npm.reload} />}
            </Group>
          ))}
        </Card>
        <Detail
          kind={kind}
          id={id}
          tools={mcp.data}
          packages={packages}
          abilities={listed}
          reload={npm.reload}
        />
      </div>
    </Page>
  );
}

const LABELS: Record<Kind, string> = { mcp: "MCP tools", npm: "npm packages", abilities: "Abilities" };
const SHORT: Record<Kind, string> = { mcp: "MCP", npm: "npm", abilities: "Abilities" };
const NONE: Record<Kind, string> = {
  mcp: "No MCP tools. List servers in ~/.toolscript.json, or start with hutch serve --config FILE.",
  npm: "No npm package is installed.",
  abilities: "No abilities. hutch ability import makes one from a curl command, a HAR file or OpenAPI.",
};

/** Number of tools of each kind on the tab of all kinds. */
const MAX_SHORT = 8;

function Group({ kind, items, selected, text, short, children }: {
  kind: Kind;
  items: Item[];
  selected: string | undefined;
  text: string;
  /** Shows only the first tools. */
  short: boolean;
  children?: ComponentChildren;
}) {
  const shown = short && items.length > MAX_SHORT + 1 ? items.slice(0, MAX_SHORT) : items;
  return (
    <section>
      <h3 class="pick-head">{LABELS[kind]}</h3>
      {items.length === 0 && <p class="quiet pick-none">{text ? "Nothing matches." : NONE[kind]}</p>}
      <div class="pick-list">
        {shown.map((item) => (
          <button
            type="button"
            key={item.id}
            class={item.id === selected ? "pick pick-current" : "pick"}
            aria-pressed={item.id === selected}
            onClick={() => navigate(["tools", kind, item.id], Object.fromEntries(location.value.query))}
          >
            <code>{visible(item.title)}</code>
            <small>{visible(item.description.split("\n")[0].slice(0, 200))}</small>
          </button>
        ))}
      </div>
      {shown.length < items.length && (
        <button
          type="button"
          class="pick pick-more"
          onClick={() => setQuery({ kind })}
        >
          {items.length - shown.length} more
        </button>
      )}
      {children}
    </section>
  );
}

function Detail({ kind, id, tools, packages, abilities, reload }: {
  kind: string | undefined;
  id: string | undefined;
  tools: McpTool[] | undefined;
  packages: InstalledPackage[];
  abilities: Ability[];
  reload: () => void;
}) {
  const tool = kind === "mcp" ? tools?.find((tool) => tool.qualifiedName === id) : undefined;
  if (tool) return <TryMcpTool key={id} tool={tool} />;
  const installed = kind === "npm" ? packages.find((item) => packageItem(item).id === id) : undefined;
  if (installed) return <PackageDetail key={id} installed={installed} onChange={reload} />;
  const ability = kind === "abilities" ? abilities.find((item) => abilityItem(item).id === id) : undefined;
  if (ability) return <AbilityDetail key={id} ability={ability} />;
  return (
    <Card>
      <Empty title={id && tools ? "There is no such tool" : "Choose a tool to see and try it"} />
    </Card>
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
      class="search-tools"
      type="search"
      placeholder="What do you want to do?"
      aria-label="Search tools"
      value={typed}
      onInput={(event) => setTyped(event.currentTarget.value)}
    />
  );
}

function mcpItem(tool: McpTool): Item {
  const title = tool.scriptName.replace(/^tools\./, "");
  return { kind: "mcp", id: tool.qualifiedName, title, description: tool.description ?? "" };
}

function packageItem({ name, version, knownAs }: InstalledPackage): Item {
  return {
    kind: "npm",
    id: `${name}@${version}`,
    title: `${name}@${version}`,
    description: knownAs.join(", "),
  };
}

function abilityItem({ id, owner, name, service, description }: Ability): Item {
  const about = [service, owner && `of ${owner}`, description].filter(Boolean).join(" · ");
  return { kind: "abilities", id: owner ? `${owner}/${id}` : id, title: name, description: about };
}

/** Reads an entry of `/console/abilities` or of `/my/abilities`. */
function toAbility(entry: any): Ability {
  return "ability_id" in entry
    ? {
      id: entry.ability_id,
      name: entry.ability_name,
      service: entry.service_name,
      description: entry.description,
      version: entry.version,
      shared: entry.shared,
      updatedAt: entry.updated_at,
      inputSchema: entry.input_schema,
    }
    : entry;
}

/** Returns true if the item contains every word of the search. */
function matches({ title, description }: Item, text: string): boolean {
  const content = `${title} ${description}`.toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => content.includes(word));
}
