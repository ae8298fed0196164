/** Icons of 20 × 20 units, drawn with lines. */

const PATHS = {
  overview: "M3 11.5 7 7l3.5 3.5L17 4M13 4h4v4M3 16h14",
  runs: "M4 5h12M4 10h12M4 15h8",
  playground: "m7 6-4 4 4 4M13 6l4 4-4 4",
  sessions: "M4 3.500h12v9H9l-3.500 3.500v-3.500H4zM7 7h6M7 9.500h4",
  tools: "M12.5 3.5a4 4 0 0 0-4.6 5.3L3 13.7V17h3.3l4.9-4.9a4 4 0 0 0 5.3-4.6L14 10l-2.6-1.4L10 6z",
  flows: "M3 4h5v4H3zM12 12h5v4h-5zM5.5 8v6H12",
  queue: "M10 3.500a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13zM10 6.500V10l2.500 2",
  approvals: "M10 2.5 16 5v4.6c0 3.7-2.5 6.5-6 7.9-3.5-1.4-6-4.200-6-7.9V5zM7.300 9.800l2 2 3.500-3.800",
  access: "M12.500 9a3.500 3.500 0 1 0-3.200-2.100L3 13.200V17h3.800v-2h2v-2l1.700-4.200M13 5.500h.01",
  connect: "M8 5H6a5 5 0 0 0 0 10h2M12 5h2a5 5 0 0 1 0 10h-2M7 10h6",
  system: "M4 4h12v5H4zM4 11h12v5H4zM7 6.500h.01M7 13.500h.01",
  api:
    "M7.500 3.500c-1.800 0-2.300.9-2.300 2.300v1.900c0 1.300-.6 2-1.900 2.300 1.300.3 1.900 1 1.900 2.300v1.900c0 1.400.5 2.300 2.300 2.300M12.500 3.500c1.800 0 2.300.9 2.300 2.300v1.900c0 1.300.6 2 1.900 2.300-1.300.3-1.900 1-1.900 2.300v1.900c0 1.400-.5 2.300-2.300 2.300",
  sun:
    "M10 6.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7zM10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.300 4.300l1.100 1.100M14.600 14.600l1.100 1.100M15.700 4.300l-1.100 1.100M5.400 14.600l-1.100 1.100",
  moon: "M16 11.500A6.500 6.500 0 0 1 8.500 4 6.500 6.500 0 1 0 16 11.500z",
  contrast: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  keyboard:
    "M2.500 5.500h15v9h-15zM5.500 8.500h.01M8.500 8.500h.01M11.500 8.500h.01M14.500 8.500h.01M6.500 11.500h7",
  exit: "M8 4H4v12h4M12 6l4 4-4 4M16 10H8",
};

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.6"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}
