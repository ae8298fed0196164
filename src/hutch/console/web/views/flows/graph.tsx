/** The graph of a flow, with the states of its steps. */

import dagre from "@dagrejs/dagre";
import { useMemo } from "preact/hooks";
import { formatDuration, visible } from "../../format.ts";
import type { FlowDocument, FlowNode, StepState } from "./model.ts";

const NODE = { width: 168, height: 52 };
const MAX_NODES = 300;
const MAX_LABEL_CHARS = 22;
/** A wide graph is scaled down to fit the page, but its texts stay readable. */
const MIN_SCALE = 0.75;

export function FlowGraph({ document, steps, selected, onSelect }: {
  document: FlowDocument;
  steps: ReadonlyMap<string, StepState>;
  selected?: string;
  onSelect: (id: string) => void;
}) {
  const layout = useMemo(() => arrange(document), [document]);
  if (!layout) return <p class="quiet">This flow has more than {MAX_NODES} steps, too many to draw.</p>;
  return (
    <div class="flow-graph" tabIndex={0} role="group" aria-label="Steps of the flow">
      <svg
        width={layout.width}
        height={layout.height}
        viewBox={`0 0 ${layout.width} ${layout.height}`}
        style={{ minWidth: `${layout.width * MIN_SCALE}px` }}
      >
        <defs>
          <marker
            id="arrow"
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            orient="auto"
          >
            <path d="M0 0.500 7.500 4 0 7.500z" class="flow-arrow" />
          </marker>
        </defs>
        {layout.edges.map((edge) => (
          <g key={edge.id}>
            <path
              d={edge.path}
              class={edge.on === "failure" ? "flow-edge flow-edge-bad" : "flow-edge"}
              marker-end="url(#arrow)"
            />
            {edge.on && edge.on !== "success" && (
              <text x={edge.x} y={edge.y} class="flow-edge-label">{visible(edge.on)}</text>
            )}
          </g>
        ))}
        {layout.nodes.map(({ node, x, y }) => (
          <Step
            key={node.id}
            node={node}
            x={x}
            y={y}
            step={steps.get(node.id)}
            selected={node.id === selected}
            onSelect={() => onSelect(node.id)}
          />
        ))}
      </svg>
    </div>
  );
}

function Step({ node, x, y, step, selected, onSelect }: {
  node: FlowNode;
  x: number;
  y: number;
  step?: StepState;
  selected: boolean;
  onSelect: () => void;
}) {
  const state = step?.state ?? "idle";
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onSelect();
  };
  return (
    <g
      transform={`translate(${x - NODE.width / 2} ${y - NODE.height / 2})`}
      class={`flow-node flow-node-${state}${selected ? " flow-node-selected" : ""}`}
      tabIndex={0}
      role="button"
      aria-pressed={selected}
      onClick={onSelect}
      onKeyDown={onKeyDown}
    >
      <title>{`${visible(node.id)}, ${visible(node.type)}, ${state}`}</title>
      <rect width={NODE.width} height={NODE.height} rx="9" />
      <text x="12" y="22" class="flow-node-id">{shorten(node.id)}</text>
      <text x="12" y="40" class="flow-node-type">
        {shorten(node.type)}
        {step?.duration_ms !== undefined ? ` · ${formatDuration(step.duration_ms)}` : ""}
        {step && step.attempt > 0 ? ` · attempt ${step.attempt + 1}` : ""}
      </text>
    </g>
  );
}

function shorten(text: string): string {
  const shown = visible(text);
  return shown.length > MAX_LABEL_CHARS ? `${shown.slice(0, MAX_LABEL_CHARS - 1)}…` : shown;
}

function arrange(document: FlowDocument) {
  const { nodes, edges } = document.graph;
  if (nodes.length > MAX_NODES) return undefined;
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 22, ranksep: 44, marginx: 10, marginy: 10 });
  for (const node of nodes) graph.setNode(node.id, { ...NODE });
  edges.forEach((edge, index) => graph.setEdge(edge.from, edge.to, {}, String(index)));
  dagre.layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    width,
    height,
    nodes: nodes.map((node) => ({ node, x: graph.node(node.id).x, y: graph.node(node.id).y })),
    edges: edges.map((edge, index) => {
      const { points }: { points: { x: number; y: number }[] } = graph.edge(
        edge.from,
        edge.to,
        String(index),
      );
      const middle = points[Math.floor(points.length / 2)];
      const path = points.map(({ x, y }, index) => `${index ? "L" : "M"}${x} ${y}`).join(" ");
      return { id: index, on: edge.on, path, x: middle.x, y: middle.y - 4 };
    }),
  };
}
