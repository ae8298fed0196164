/** The list of runs: live and filtered. Only the visible part is drawn. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post, session } from "../../api.ts";
import { formatDuration, visible } from "../../format.ts";
import { link, location } from "../../router.ts";
import { Age, Badge, Button, Empty, ErrorNote, Page } from "../../ui/basics.tsx";
import { inFrame } from "../../ui/frames.ts";
import { clearFilters, currentFilters, Filters } from "./filters.tsx";
import { isActive, nameOf, ownerOf, type RunEntry, type RunPage, stateOf } from "./model.ts";

const PAGE_SIZE = 100;
const REFRESH_MS = 2_000;
const ROW_PX = 37;
const EXTRA_ROWS = 10;
const MAX_BULK = 200;

/** Loads pages of runs. Reloads the first page regularly while the list shows its beginning. */
function useRuns(filters: string, live: boolean) {
  const [runs, setRuns] = useState<RunEntry[]>();
  const [page, setPage] = useState<RunPage>();
  const [next, setNext] = useState<string>();
  const [error, setError] = useState<unknown>();
  const loading = useRef(false);
  const load = async (cursor?: string, signal?: AbortSignal) => {
    const parameters = new URLSearchParams(filters);
    parameters.set("limit", String(PAGE_SIZE));
    if (cursor) parameters.set("cursor", cursor);
    return await get<RunPage>(`/runs?${parameters}`, signal);
  };
  const show = (first: RunPage) => {
    setError(undefined);
    setPage(first);
    setRuns((old) => {
      const fresh = new Set(first.runs.map((run) => run.run_id));
      const rest = (old ?? []).slice(first.runs.length).filter((run) => !fresh.has(run.run_id));
      // If there are no further pages, the first page is the whole list, so drop all other runs.
      return first.next && old && old.length > PAGE_SIZE ? [...first.runs, ...rest] : first.runs;
    });
    setNext((old) => (old && runs && runs.length > PAGE_SIZE ? old : first.next));
  };
  const refresh = async (signal: AbortSignal) => {
    try {
      const first = await load(undefined, signal);
      inFrame(loading, () => signal.aborted || show(first));
    } catch (error) {
      if (!signal.aborted) setError(error);
    }
  };
  useEffect(() => {
    const controller = new AbortController();
    setRuns(undefined);
    setNext(undefined);
    refresh(controller.signal);
    return () => controller.abort();
  }, [filters]);
  useEffect(() => {
    if (!live) return;
    const controller = new AbortController();
    const timer = setInterval(() => document.hidden || refresh(controller.signal), REFRESH_MS);
    return () => {
      clearInterval(timer);
      controller.abort();
    };
  }, [filters, live, runs && runs.length > PAGE_SIZE]);
  const more = async () => {
    if (!next || loading.current) return;
    loading.current = true;
    try {
      const page = await load(next);
      setRuns((old) => {
        const known = new Set((old ?? []).map((run) => run.run_id));
        return [...(old ?? []), ...page.runs.filter((run) => !known.has(run.run_id))];
      });
      setNext(page.next);
    } catch (error) {
      setError(error);
    } finally {
      loading.current = false;
    }
  };
  return { runs, page, error, more, hasMore: next !== undefined };
}

export function RunList() {
  const filters = currentFilters().toString();
  const [atTop, setAtTop] = useState(true);
  const { runs, page, error, more, hasMore } = useRuns(filters, atTop);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const toggle = (id: string) =>
    setSelected((old) => {
      const changed = new Set(old);
      if (!changed.delete(id)) changed.add(id);
      return changed;
    });
  return (
    <Page wide title="Runs" actions={<Bulk selected={selected} clear={() => setSelected(new Set())} />}>
      <Filters counts={page?.counts} complete={page?.counts_complete} />
      {error !== undefined && <ErrorNote error={error} />}
      {runs?.length === 0 && <NoRuns filtered={filters !== ""} />}
      {runs && runs.length > 0 && (
        <Rows
          runs={runs}
          selected={selected}
          toggle={toggle}
          selectAll={() => setSelected(new Set(runs.map((run) => run.run_id)))}
          more={more}
          hasMore={hasMore}
          onTop={setAtTop}
        />
      )}
    </Page>
  );
}

function NoRuns({ filtered }: { filtered: boolean }) {
  return filtered
    ? (
      <Empty title="No run matches these filters">
        <Button onClick={clearFilters}>Show all runs</Button>
      </Empty>
    )
    : (
      <Empty title="Nothing has run yet">
        <p>
          Try the <a href="#/playground">playground</a>, or <a href="#/connect">connect</a> a client.
        </p>
      </Empty>
    );
}

function Rows({ runs, selected, toggle, selectAll, more, hasMore, onTop }: {
  runs: RunEntry[];
  selected: ReadonlySet<string>;
  toggle: (id: string) => void;
  selectAll: () => void;
  more: () => void;
  hasMore: boolean;
  onTop: (atTop: boolean) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const loadMore = useRef(more);
  loadMore.current = more;
  useEffect(() => {
    const element = box.current!;
    const update = () => {
      const { scrollTop: top, clientHeight: height } = element;
      setView((old) => old.top === top && old.height === height ? old : { top, height });
      onTop(top < ROW_PX);
      if (top + height > element.scrollHeight - 20 * ROW_PX) loadMore.current();
    };
    update();
    element.addEventListener("scroll", update, { passive: true });
    const resized = new ResizeObserver(update);
    resized.observe(element);
    return () => {
      element.removeEventListener("scroll", update);
      resized.disconnect();
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_PX) - EXTRA_ROWS);
  const last = Math.min(runs.length, Math.ceil((view.top + view.height) / ROW_PX) + EXTRA_ROWS);
  const shown = useMemo(() => runs.slice(first, last), [runs, first, last]);
  const isAdmin = session.value?.role === "admin";
  return (
    <div class="run-list" ref={box} tabIndex={0} role="region" aria-label="Runs">
      <table class="table run-table" aria-rowcount={hasMore ? -1 : runs.length}>
        <thead>
          <tr>
            <th>
              <input
                type="checkbox"
                aria-label="Select all loaded runs"
                checked={runs.every((run) => selected.has(run.run_id))}
                onChange={selectAll}
              />
            </th>
            <th>State</th>
            <th>Run</th>
            <th class="protocol wide-only">Protocol</th>
            {isAdmin && <th class="owner wide-only">Owner</th>}
            <th class="number calls wide-only">Calls</th>
            <th class="number waited wide-only">Waited</th>
            <th class="number wide-only">Ran</th>
            <th class="number when">When</th>
          </tr>
        </thead>
        <tbody>
          <tr style={{ height: first * ROW_PX }} aria-hidden="true" />
          {shown.map((run, index) => (
            // The key is the position, so that rows are reused. On a busy server, each refresh shows only new
            // runs, so with ids as keys all rows would be created again.
            <tr key={first + index} class={selected.has(run.run_id) ? "row row-selected" : "row"}>
              <td>
                <input
                  type="checkbox"
                  aria-label={`Select the run ${run.run_id}`}
                  checked={selected.has(run.run_id)}
                  onChange={() => toggle(run.run_id)}
                />
              </td>
              <td>
                <Badge state={stateOf(run)} />
              </td>
              <td class="run-name">
                <a
                  href={run.kind === "flow" && run.flow
                    ? link(["flows", run.flow, "runs", run.run_id])
                    : link(["runs", run.run_id], { from: location.value.query.toString() })}
                >
                  {visible(nameOf(run))}
                </a>
                {run.error?.message && (
                  <span class={run.status === "suspended" ? "run-error waiting" : "run-error"}>
                    {visible(run.error.message.slice(0, 300))}
                  </span>
                )}
              </td>
              <td class="wide-only">
                {run.protocol}
                {run.engine && <span class="quiet">{` · ${run.engine}`}</span>}
              </td>
              {isAdmin && <td class="wide-only">{visible(ownerOf(run))}</td>}
              <td class="number wide-only">{run.tool_calls || ""}</td>
              <td class="number quiet waited wide-only">{waited(run)}</td>
              <td class="number wide-only" title={waited(run) && `Waited ${waited(run)} before`}>
                {isActive(run) ? "…" : formatDuration(run.duration_ms)}
              </td>
              <td class="number quiet">
                <Age time={run.created_at} />
              </td>
            </tr>
          ))}
          <tr style={{ height: Math.max(0, runs.length - last) * ROW_PX }} aria-hidden="true" />
        </tbody>
      </table>
    </div>
  );
}

function waited(run: RunEntry): string {
  const total = (run.queue_ms ?? 0) + (run.install_ms ?? 0);
  return total >= 1 ? formatDuration(total) : "";
}

/** Cancels or replays all selected runs, including those that are scrolled out of view. */
function Bulk({ selected, clear }: { selected: ReadonlySet<string>; clear: () => void }) {
  const [message, setMessage] = useState("");
  const act = async (action: "cancel" | "replay", body: object) => {
    const ids = [...selected].slice(0, MAX_BULK);
    let done = 0;
    let refused = "";
    for (const id of ids) {
      try {
        await post(`/runs/${encodeURIComponent(id)}/${action}`, body);
        done++;
      } catch (error) {
        refused = error instanceof Error ? error.message : String(error);
      }
    }
    setMessage(`${done} of ${ids.length} ${action === "cancel" ? "cancelled" : "started again"}. ${refused}`);
    clear();
  };
  return (
    <>
      {message && <span class="quiet" role="status">{visible(message)}</span>}
      {selected.size > 0 && (
        <>
          <span class="quiet">{selected.size} selected</span>
          <Button small onClick={() => act("cancel", {})}>Cancel</Button>
          <Button small onClick={() => act("replay", { mode: "same" })}>Run again</Button>
          <Button small onClick={clear}>Clear</Button>
        </>
      )}
    </>
  );
}
