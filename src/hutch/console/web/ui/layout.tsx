/** The frame around all views: navigation, theme, connection state. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { offline, session, signOut } from "../api.ts";
import { formatCount } from "../format.ts";
import { location } from "../router.ts";
import { pending, usePendingApprovals } from "../views/approvals.tsx";
import { Button, Dialog } from "./basics.tsx";
import { Icon, type IconName } from "./icons.tsx";
import { useData } from "./load.ts";
import { ThemeButton } from "./theme.tsx";

interface NavigationEntry {
  path: string;
  label: string;
  icon: IconName;
  /** The key that opens the view, after `g`. */
  key: string;
  adminOnly?: boolean;
}

export const NAVIGATION: NavigationEntry[] = [
  { path: "", label: "Overview", icon: "overview", key: "o" },
  { path: "runs", label: "Runs", icon: "runs", key: "r" },
  { path: "playground", label: "Playground", icon: "playground", key: "p" },
  { path: "sessions", label: "Sessions", icon: "sessions", key: "e" },
  { path: "tools", label: "Tools", icon: "tools", key: "t" },
  { path: "flows", label: "Flows", icon: "flows", key: "f" },
  { path: "queue", label: "Queue", icon: "queue", key: "q" },
  { path: "approvals", label: "Approvals", icon: "approvals", key: "a", adminOnly: true },
  { path: "access", label: "Access", icon: "access", key: "u", adminOnly: true },
  { path: "connect", label: "Connect", icon: "connect", key: "c" },
  { path: "system", label: "System", icon: "system", key: "s", adminOnly: true },
];

function visibleEntries(): NavigationEntry[] {
  return NAVIGATION.filter((entry) => !entry.adminOnly || session.value?.role === "admin");
}

/** Opens views by `g` and a letter, and the help by `?`, unless the focus is in a field. */
function useKeyboard(showHelp: () => void): void {
  useEffect(() => {
    let pending = false;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (target.closest("input, textarea, select, [contenteditable]")) return;
      if (pending) {
        pending = false;
        const entry = visibleEntries().find((entry) => entry.key === event.key);
        if (entry) globalThis.location.hash = `#/${entry.path}`;
      } else if (event.key === "g") {
        pending = true;
        setTimeout(() => pending = false, 1_500);
      } else if (event.key === "?") {
        showHelp();
      } else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    globalThis.addEventListener("keydown", onKey);
    return () => globalThis.removeEventListener("keydown", onKey);
  }, []);
}

export function Layout({ children }: { children: ComponentChildren }) {
  const [help, setHelp] = useState(false);
  useKeyboard(() => setHelp(true));
  usePendingApprovals();
  const current = location.value.path[0] ?? "";
  const entries = visibleEntries();
  useEffect(() => {
    const entry = entries.find((entry) => entry.path === current);
    document.title = entry?.path ? `${entry.label} · Hutch` : "Hutch";
  }, [current]);
  // Scroll to the current entry, because the entries are a scrolling row on a phone.
  useEffect(() => {
    document.querySelector(".nav-current")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [current]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={skipToContent}>Skip to content</a>
      <nav class="sidebar" aria-label="Views">
        <a class="brand" href="#/">
          <img src="/assets/icon.svg" alt="" width="26" height="26" />
          <span>Hutch</span>
        </a>
        <ul>
          {entries.map((entry) => (
            <li key={entry.path}>
              <a
                href={`#/${entry.path}`}
                class={entry.path === current ? "nav nav-current" : "nav"}
                aria-current={entry.path === current ? "page" : undefined}
                title={`${entry.label} (g ${entry.key})`}
              >
                <Icon name={entry.icon} />
                <span>{entry.label}</span>
                {entry.path === "approvals" && pending.value?.length
                  ? <span class="nav-count">{pending.value.length}</span>
                  : null}
              </a>
            </li>
          ))}
        </ul>
        <div class="sidebar-foot">
          <a class="nav" href="/docs/api" title="Every route of this server">
            <Icon name="api" />
            <span>API</span>
          </a>
          <ThemeButton />
          <button type="button" class="nav" onClick={() => setHelp(true)} title="Keyboard shortcuts (?)">
            <Icon name="keyboard" />
            <span>Shortcuts</span>
          </button>
          {session.value?.csrf && (
            <button type="button" class="nav" onClick={() => signOut()}>
              <Icon name="exit" />
              <span>Sign out</span>
            </button>
          )}
          <p class="version">
            {session.value?.user ?? (session.value?.role === "admin" ? "operator" : "")}
            <span>{session.value?.version}</span>
          </p>
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        {offline.value && (
          <div class="note note-bad" role="status">
            {offline.value} What you see may be old. Retrying…
          </div>
        )}
        <WaitingRecords />
        {children}
      </main>
      {help && <Shortcuts onClose={() => setHelp(false)} />}
    </div>
  );
}

const HEALTH_MS = 5_000;

/** Shows a notice while the database does not answer, because all lists then lack the newest runs. */
function WaitingRecords() {
  const { data } = useData<{ records?: { status: string; waiting: number; dropped: number } }>(
    "/health",
    HEALTH_MS,
  );
  const records = data?.records;
  if (!records || records.status === "ok") return null;
  const lost = records.dropped ? ` ${formatCount(records.dropped)} records were lost.` : "";
  return (
    <div class="note note-bad" role="status">
      The database does not answer. Runs continue; {formatCount(records.waiting)}{" "}
      run records wait to be written and are missing in the lists.{lost}
    </div>
  );
}

function skipToContent(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Shortcuts({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <table class="table">
        <tbody>
          {visibleEntries().map((entry) => (
            <tr key={entry.path}>
              <td>
                <kbd>g</kbd> <kbd>{entry.key}</kbd>
              </td>
              <td>{entry.label}</td>
            </tr>
          ))}
          <tr>
            <td>
              <kbd>/</kbd>
            </td>
            <td>Search</td>
          </tr>
          <tr>
            <td>
              <kbd>?</kbd>
            </td>
            <td>This help</td>
          </tr>
        </tbody>
      </table>
      <p class="actions">
        <Button onClick={onClose}>Close</Button>
      </p>
    </Dialog>
  );
}
