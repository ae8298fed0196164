/** The views of the console. Each is loaded when it is first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { location } from "../router.ts";
import { Button, Empty } from "../ui/basics.tsx";

interface ViewModule {
  default: ComponentType;
}

/** Loaders of the views by the first segment of the path. */
const LOADERS: Record<string, () => Promise<ViewModule>> = {
  "": () => import("./overview.tsx"),
  runs: () => import("./runs.tsx"),
  playground: () => import("./playground.tsx"),
  sessions: () => import("./sessions.tsx"),
  tools: () => import("./tools.tsx"),
  flows: () => import("./flows.tsx"),
  queue: () => import("./queue.tsx"),
  approvals: () => import("./approvals.tsx"),
  access: () => import("./access.tsx"),
  connect: () => import("./connect.tsx"),
  system: () => import("./system.tsx"),
};

const loaded: Record<string, ComponentType> = {};

export function View() {
  const name = location.value.path[0] ?? "";
  const [, update] = useState(0);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    setError(undefined);
    if (loaded[name] || !LOADERS[name]) return;
    LOADERS[name]().then((module) => {
      loaded[name] = module.default;
      update((count) => count + 1);
    }, setError);
  }, [name]);
  if (error) {
    return (
      <Empty title="This view could not be loaded">
        <p>The server does not answer, or it was updated since this page was opened.</p>
        <Button kind="primary" onClick={() => globalThis.location.reload()}>Load the page again</Button>
      </Empty>
    );
  }
  const Current = loaded[name];
  if (Current) return <Current key={name} />;
  if (LOADERS[name]) return null;
  return (
    <Empty title="There is no such page">
      <a href="#/">Go to the overview</a>
    </Empty>
  );
}
