// Lines over time, drawn by uPlot. Each plot has a text that says the same to a screen reader.
import { html, signal, useEffect, useId, useRef } from "./lib.js";
import { compact } from "./format.js";
import "./language.js";
import { drawn } from "./theme.js";

// The library, a third of all scripts, once the first plot is shown.
const library = signal(null);
let isLoading = false;
function load() {
  if (isLoading) return;
  isLoading = true;
  import("./vendor/uplot.js").then((module) => (library.value = module.default), () => (isLoading = false));
}

const HEIGHT = 190;
// The steps of the labels of durations, in seconds: round numbers of milliseconds, seconds, minutes, hours, days.
export const DURATIONS = [
  ...[0.001, 0.01, 0.1].flatMap((size) => [1, 2, 5].map((step) => step * size)),
  ...[1, 60].flatMap((size) => [1, 2, 5, 10, 15, 30].map((step) => step * size)),
  ...[1, 2, 4, 6, 12, 24, 48, 120, 240].map((hours) => hours * 3600),
];
// The labels of times: of days, hours and minutes, in 24 hours.
const CLOCK = [
  [86_400, "{D} {MMM}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{D} {MMM}", null, "\n{D} {MMM}", null, null, null, 1],
  [1, ":{ss}", "\n{HH}:{mm}", null, null, null, "\n{HH}:{mm}", null, 1],
];

// The indices of values without a neighbour, of which a line shows nothing: they are drawn as points.
function alone(values) {
  const isThere = (index) => values[index] !== null && values[index] !== undefined;
  return [...values.keys()].filter((index) => isThere(index) && !isThere(index - 1) && !isThere(index + 1));
}

// The value of a CSS colour as the canvas needs it.
function colour(element, name, alpha = 1) {
  element.style.color = `var(--${name})`;
  const value = getComputedStyle(element).color;
  element.style.color = "";
  return alpha === 1 ? value : `color-mix(in srgb, ${value} ${alpha * 100}%, transparent)`;
}

// As wide as the longest label, with the tick and the gap.
function labelWidth(plot, labels, axis, cycle) {
  const { ticks, gap, font, _size } = plot.axes[axis];
  if (cycle > 1) return _size; // the size has settled
  plot.ctx.font = font[0];
  const widths = (labels ?? []).map((label) => plot.ctx.measureText(label).width / devicePixelRatio);
  return Math.ceil(Math.max(24, ...widths) + ticks.size + gap + 2);
}

// Only the pointer's place is shared between plots: a selection is one plot's own.
const SHARED = { pub: (type) => type === "mousemove" || type === "mouseleave" };

// Pass the selected times to `onSelect`, and remove the selection.
function takeSelection(plot, onSelect) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const [from, to] = [left, left + width].map((at) => plot.posToVal(at, "x"));
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  onSelect(from, to);
}

function optionsFor(element, { series, format, width, sync, isIndex, least, incrs, select }) {
  const [line, soft] = [colour(element, "line"), colour(element, "soft")];
  const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    cursor: { sync: sync ? { key: sync, filters: SHARED } : undefined, points: { size: 6 }, y: false, drag: { x: Boolean(select), y: false, setScale: false } },
    hooks: select && { setSelect: [select] },
    legend: { live: true },
    scales: { x: { time: !isIndex }, y: { range: (_, low, high) => [Math.min(0, low), Math.max(high * 1.1, least)] } },
    axes: [{ ...axis, values: isIndex ? undefined : CLOCK }, { ...axis, size: labelWidth, incrs, values: (_, values) => values.map(format) }],
    series: [
      { label: "\u00a0", value: (_, at) => (at === null || at === undefined ? "" : isIndex ? String(at) : new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })) },
      ...series.map((line) => ({
        label: line.label,
        stroke: colour(element, line.colour),
        fill: line.fill ? colour(element, line.colour, 0.14) : undefined,
        width: 2,
        dash: line.dash,
        spanGaps: false,
        points: { show: false, size: 5, filter: (plot, index) => alone(plot.data[index]) },
        value: (_, value, __, index) => (index === null || index === undefined ? "" : value === null || value === undefined ? "–" : format(value)),
      })),
    ],
  };
}

// `times` in seconds; `series`: [{ label, values, colour, fill, dash }]; `summary` says what the plot shows.
// `onSelect(from, to)` gets the times that a user selects by dragging.
// `least` is the least height of the scale, and `incrs` are the steps of its labels. With `isIndex`, `times` are no times but numbers.
export function Plot({ times, series, format = compact, range, sync, summary, isIndex = false, least = 1e-9, incrs, onSelect }) {
  const element = useRef();
  const plot = useRef();
  const id = useId();
  const look = JSON.stringify([series.map(({ label, colour: name }) => [label, name]), drawn.value]);
  const latest = useRef();
  latest.current = { range, onSelect };
  const uPlot = library.value;
  useEffect(() => {
    if (!uPlot) return load();
    const host = element.current;
    const options = optionsFor(host, { series, format, sync, isIndex, least, incrs, width: host.clientWidth, select: onSelect && ((chart) => takeSelection(chart, latest.current.onSelect)) });
    // The range moves with time, so it is read when the plot is drawn.
    options.scales.x.range = (_, low, high) => latest.current.range ?? [low, high];
    plot.current = new uPlot(options, [times, ...series.map(({ values }) => values)], host);
    const observer = new ResizeObserver(() => plot.current.setSize({ width: host.clientWidth, height: HEIGHT }));
    observer.observe(host);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [look, uPlot]);
  useEffect(() => plot.current?.setData([times, ...series.map(({ values }) => values)]));
  return html`<figure class="plot"><div ref=${element} aria-hidden="true"></div>
    <figcaption id=${id} class="hidden">${summary}</figcaption></figure>`;
}
