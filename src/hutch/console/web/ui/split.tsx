/** Two panels with a divider that can be moved with the pointer or the arrow keys. */

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

const STORED = "split";
const MIN_PERCENT = 25;
const MAX_PERCENT = 75;
const STEP = 2;

function clamp(percent: number): number {
  return Math.min(MAX_PERCENT, Math.max(MIN_PERCENT, percent));
}

export function Split({ left, right }: { left: ComponentChildren; right: ComponentChildren }) {
  const [percent, setPercent] = useState(() => clamp(Number(localStorage.getItem(STORED)) || 55));
  const box = useRef<HTMLDivElement>(null);
  const move = (value: number) => {
    setPercent(clamp(value));
    localStorage.setItem(STORED, String(clamp(value)));
  };
  const onPointerMove = (event: PointerEvent) => {
    if (!(event.currentTarget as HTMLElement).hasPointerCapture(event.pointerId)) return;
    const { left, width } = box.current!.getBoundingClientRect();
    move((event.clientX - left) / width * 100);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowLeft") move(percent - STEP);
    else if (event.key === "ArrowRight") move(percent + STEP);
  };
  return (
    <div class="split" ref={box} style={{ "--split": `${percent}%` }}>
      <div class="split-panel">{left}</div>
      <div
        class="split-bar"
        role="separator"
        aria-orientation="vertical"
        aria-label="Width of the panels"
        aria-valuenow={Math.round(percent)}
        aria-valuemin={MIN_PERCENT}
        aria-valuemax={MAX_PERCENT}
        tabIndex={0}
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={onPointerMove}
        onKeyDown={onKeyDown}
      />
      <div class="split-panel">{right}</div>
    </div>
  );
}
