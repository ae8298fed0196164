/** Source code with line numbers. Lines can be marked, and one is scrolled into view. */

import { useEffect, useRef } from "preact/hooks";
import { visible } from "../format.ts";

const MAX_LINES = 5_000;

export type LineMark = "call" | "error";

export function Source({ code, marks, focus }: {
  code: string;
  marks: ReadonlyMap<number, LineMark>;
  /** The line to scroll to, counted from 1. */
  focus?: number | null;
}) {
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (!focus || !box.current) return;
    const line = box.current.children[focus - 1] as HTMLElement | undefined;
    if (line) box.current.scrollTop = line.offsetTop - box.current.clientHeight / 2;
  }, [focus, code]);
  const lines = code.split("\n");
  return (
    <pre class="code source" ref={box} tabIndex={0} aria-label="Source code">
      {lines.slice(0, MAX_LINES).map((line, index) => {
        const number = index + 1;
        const mark = marks.get(number);
        const classes = ["line", mark && `line-${mark}`, number === focus && "line-focus"].filter(Boolean).join(" ");
        return (
          <div key={number} class={classes}>
            <span class="line-number">{number}</span>
            <span class="line-text">{visible(line) || " "}</span>
          </div>
        );
      })}
      {lines.length > MAX_LINES && <div class="quiet">… {lines.length - MAX_LINES} more lines</div>}
    </pre>
  );
}
