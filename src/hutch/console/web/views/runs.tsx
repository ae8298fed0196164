/** Runs: the list, or one run. */

import { location } from "../router.ts";
import { RunList } from "./runs/list.tsx";
import { RunView } from "./runs/run.tsx";

export default function Runs() {
  const id = location.value.path[1];
  return id ? <RunView key={id} id={id} /> : <RunList />;
}
