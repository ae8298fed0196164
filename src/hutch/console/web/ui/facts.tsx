/** A row of short facts about one thing, such as a run. */

import type { ComponentChildren } from "preact";

export function FactRow({ children }: { children: ComponentChildren }) {
  return <dl class="fact-row">{children}</dl>;
}

export function Fact({ name, children, title }: {
  name: string;
  children: ComponentChildren;
  title?: string;
}) {
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
