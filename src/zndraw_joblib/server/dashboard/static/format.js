// Texts for people: times, durations, counts and sizes.
import { Exact } from "./json.js";

const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const LONG = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
});
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => NUMBER.format(value ?? 0);
export const compact = (value) => (value < 10_000 ? count(value) : COMPACT.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

// The time of day, where the date is known or is in the title.
export const timeOfDay = (text) => SHORT.format(new Date(text));

// A moment in the zone of the browser, which is named.
export const exact = (text) => `${LONG.format(new Date(text))}${ZONE ? ` (${ZONE})` : ""}`;

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// The two largest units of a duration: 2 h 5 min, 3.4 s, 12 ms.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.001) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const first = UNITS.findIndex(([size]) => whole >= size);
  const [size, name] = UNITS[first];
  const rest = UNITS[first + 1];
  const more = rest ? Math.floor((whole % size) / rest[0]) : 0;
  return `${Math.floor(whole / size)} ${name}${more ? ` ${more} ${rest[1]}` : ""}`;
}

export const between = (from, to) => (from && to ? (new Date(to) - new Date(from)) / 1000 : null);

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  const units = ["KiB", "MiB", "GiB"];
  let value = size / 1024;
  while (value >= 1024 && units.length > 1) {
    value /= 1024;
    units.shift();
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[0]}`;
}

// The ids of tasks begin with the time, so those of one minute differ only at their end.
export const shortId = (id) => (id[14] === "7" ? `${id.slice(0, 8)}…${id.slice(-4)}` : String(id).slice(0, 8));

// The parts of a full name: its room, category and own name.
export const partsOf = (name) => {
  const [room, category, ...own] = name.split(":");
  return own.length ? { room, category, name: own.join(":") } : { room: "", category: "", name };
};

const JSON_TOKENS = /"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^"{}[\],:]+/g;

function textOf(token) {
  try {
    return JSON.parse(token);
  } catch {
    return token.replaceAll(/^"|\\.?$/g, ""); // the text was cut
  }
}

// The beginning of a payload, JSON that may be cut, as a line: structure CO-on-Pt-11 · steps 90.
export function preview(text) {
  let [line, depth] = ["", 0];
  for (const token of (text ?? "").match(JSON_TOKENS) ?? []) {
    if (token === "{" || token === "[") line += depth++ ? token : "";
    else if (token === "}" || token === "]") line += --depth ? token : "";
    else if (token === ",") line += depth > 1 ? ", " : " · ";
    else if (token === ":") line += " ";
    else line += token[0] === '"' ? textOf(token) : token;
  }
  return line.replaceAll(/\s+/g, " ").trim();
}

// What tells a task from others of its job: the first text of its payload, or its first value with its name.
export function subject(payload) {
  const entries = payload && typeof payload === "object" && !Array.isArray(payload) ? Object.entries(payload) : [];
  const [, text] = entries.find(([, value]) => typeof value === "string" && value.trim()) ?? [];
  const [name, value] = entries.find(([, item]) => item === null || typeof item !== "object" || item instanceof Exact) ?? [];
  const line = text ?? (name === undefined ? "" : `${name} ${value}`);
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}
