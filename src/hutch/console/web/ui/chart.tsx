/** Line charts over time. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { cancelFrame, inFrame } from "./frames.ts";

const MIN_SECONDS = 60;

export interface Series {
  label: string;
  color: string;
  values: (number | null)[];
  fill?: boolean;
}

/** `color` values are names of CSS variables, such as `--chart-1`. */
export function Chart({ label, times, series, format, height = 150 }: {
  label: string;
  times: number[];
  series: Series[];
  format: (value: number) => string;
  height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const shown = useRef<uPlot.AlignedData>([]);
  shown.current = data(times, series);
  useEffect(() => {
    const element = box.current!;
    // Resolve the variable, because a canvas needs a plain colour and the value may depend on the theme.
    const css = (name: string) => {
      element.style.color = `var(${name})`;
      const { color } = getComputedStyle(element);
      element.style.color = "";
      return color;
    };
    const create = () => {
      plot.current?.destroy();
      const axis = {
        stroke: css("--quiet"),
        grid: { stroke: css("--line"), width: 1 },
        ticks: { show: false },
      };
      plot.current = new uPlot(
        {
          width: element.clientWidth,
          height,
          legend: { show: false },
          cursor: { y: false, points: { size: 6 } },
          padding: [8, 24, 0, 0],
          scales: {
            // Show at least a minute. On a shorter axis, several ticks would have the same label.
            x: { range: (_plot, low, high) => [Math.min(low, high - MIN_SECONDS), high] },
            y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.15 : 1] },
          },
          axes: [
            {
              ...axis,
              size: 26,
              space: 70,
              font: "11px system-ui",
              values: (_plot, ticks) => ticks.map(formatClock),
            },
            {
              ...axis,
              size: 58,
              space: 32,
              font: "11px system-ui",
              values: (_plot, ticks) => ticks.map(format),
            },
          ],
          series: [
            {},
            ...series.map(({ label, color, fill }) => ({
              label,
              stroke: css(color),
              width: 1.6,
              fill: fill ? `color-mix(in srgb, ${css(color)} 14%, transparent)` : undefined,
              points: { show: false },
            })),
          ],
        },
        shown.current,
        element,
      );
    };
    // Create each chart in its own frame, because all charts of a page together take more than 0.1 s.
    inFrame(box, create);
    const resize = () => plot.current?.setSize({ width: element.clientWidth, height });
    const resized = new ResizeObserver(() => plot.current && inFrame(resized, resize));
    resized.observe(element);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", create);
    const themed = new MutationObserver(create);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      cancelFrame(box);
      resized.disconnect();
      themed.disconnect();
      dark.removeEventListener("change", create);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, []);
  useEffect(() => {
    if (plot.current) inFrame(box, () => plot.current?.setData(shown.current));
  }, [times, series]);
  const latest = series.map(({ values }) => {
    const value = values.at(-1);
    return value === null || value === undefined ? "–" : format(value);
  });
  const spoken = series.map((each, index) => `${each.label} ${latest[index]}`).join(", ");
  return (
    <>
      <ul class="legend" aria-hidden="true">
        {series.map(({ label, color }, index) => (
          <li key={label}>
            <span class="legend-mark" style={{ background: `var(${color})` }} />
            {label} <strong>{latest[index]}</strong>
          </li>
        ))}
      </ul>
      <div class="chart" ref={box} role="img" aria-label={`${label}: ${spoken}`} style={{ height }} />
    </>
  );
}

function formatClock(seconds: number): string {
  return new Date(seconds * 1_000).toTimeString().slice(0, 8);
}

function data(times: number[], series: Series[]): uPlot.AlignedData {
  return [times, ...series.map(({ values }) => values)];
}
