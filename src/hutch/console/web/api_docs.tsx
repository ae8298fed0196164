/** The page `/docs/api`: every operation of the server, from its OpenAPI document. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { filterGroups, type Group, groupsOf, type OpenApi } from "./api_docs/document.ts";
import { Method, OperationCard } from "./api_docs/operation.tsx";
import { Text } from "./api_docs/text.tsx";
import { Empty, ErrorNote } from "./ui/basics.tsx";
import { Icon } from "./ui/icons.tsx";
import { ThemeButton } from "./ui/theme.tsx";

function ApiDocs() {
  const [api, setApi] = useState<OpenApi>();
  const [error, setError] = useState<unknown>();
  const [search, setSearch] = useState("");
  const current = useHash();
  useSearchKey();
  const load = () => {
    setError(undefined);
    fetch("/openapi.json").then(async (response) => {
      if (!response.ok) throw new Error(`The server answered ${response.status}.`);
      setApi(await response.json());
    }).catch(setError);
  };
  useEffect(load, []);
  const groups = api ? filterGroups(groupsOf(api), search) : [];
  return (
    <div class="frame api-frame">
      <nav class="sidebar api-sidebar" aria-label="Operations">
        <a class="brand" href="/">
          <img src="/assets/icon.svg" alt="" width="26" height="26" />
          <span>Hutch API</span>
        </a>
        <input
          type="search"
          placeholder="Search  /"
          aria-label="Search operations"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
        <Contents groups={groups} current={current} />
        <div class="sidebar-foot">
          <a class="nav" href="/">
            <Icon name="overview" />
            <span>Console</span>
          </a>
          <ThemeButton />
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        {error ? <ErrorNote error={error} retry={load} /> : null}
        {api && <Reference api={api} groups={groups} current={current} />}
      </main>
    </div>
  );
}

function Contents({ groups, current }: { groups: Group[]; current: string }) {
  return (
    <ul class="api-contents">
      {groups.map((group) => (
        <li key={group.tag}>
          <a class="api-tag" href={`#${group.id}`}>{group.tag}</a>
          <ul>
            {group.routes.map(({ method, path, operation }) => (
              <li key={operation.operationId}>
                <a
                  class={operation.operationId === current ? "api-entry api-entry-current" : "api-entry"}
                  href={`#${operation.operationId}`}
                  title={operation.summary}
                >
                  <Method method={method} />
                  <span>{path}</span>
                </a>
              </li>
            ))}
          </ul>
        </li>
      ))}
    </ul>
  );
}

function Reference({ api, groups, current }: { api: OpenApi; groups: Group[]; current: string }) {
  return (
    <section class="page api-page">
      <header class="page-head">
        <h1>
          {api.info.title} API <span class="quiet">{api.info.version}</span>
        </h1>
        <a class="button" href="/openapi.json" download="openapi.json">openapi.json</a>
      </header>
      <Text text={api.info.description} />
      {groups.map((group) => (
        <section key={group.tag} id={group.id} class="api-group">
          <h2>{group.tag}</h2>
          <Text text={group.description} />
          {group.routes.map((route) => (
            <OperationCard
              key={route.operation.operationId}
              api={api}
              route={route}
              current={route.operation.operationId === current}
            />
          ))}
        </section>
      ))}
      {!groups.length && <Empty title="No operation has all of these words" />}
    </section>
  );
}

/**
 * Returns the fragment of the address. When the page is loaded, scrolls to the group that the fragment names.
 */
function useHash(): string {
  const read = () => decodeURIComponent(globalThis.location.hash.slice(1));
  const [hash, setHash] = useState(read);
  useEffect(() => {
    const update = () => setHash(read());
    globalThis.addEventListener("hashchange", update);
    return () => globalThis.removeEventListener("hashchange", update);
  }, []);
  return hash;
}

function useSearchKey(): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "/" || (event.target as HTMLElement).closest("input, textarea")) return;
      event.preventDefault();
      document.querySelector<HTMLInputElement>("input[type=search]")?.focus();
    };
    globalThis.addEventListener("keydown", onKey);
    return () => globalThis.removeEventListener("keydown", onKey);
  }, []);
}

render(<ApiDocs />, document.getElementById("app")!);
