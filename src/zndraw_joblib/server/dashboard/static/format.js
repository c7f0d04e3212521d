// Texts for people: times, durations, counts and sizes.
import { Exact } from "./json.js";

const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const LONG = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
});
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => NUMBER.format(value ?? 0);
export const compact = (value) => (value < 1_000_000 ? count(value) : COMPACT.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const IS_UTC = /^(Etc\/)?(UTC|UCT|Universal|Zulu)$/.test(ZONE);

// The time of day, where the date is known or is in the title.
export const timeOfDay = (text) => SHORT.format(new Date(text));

// A moment in the zone of the browser, which is named.
export const exact = (text) => `${LONG.format(new Date(text))}${ZONE && !IS_UTC ? ` (${ZONE})` : ""}`;

const MOMENT = /(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)?(?:\.\d+)?(?: UTC|Z|\+00:00)/g;

// A sentence of the API, with its moments in the zone of the browser instead of UTC.
export const localTimes = (text) => text.replace(MOMENT, (_, day, time, seconds = ":00") => LONG.format(new Date(`${day}T${time}${seconds}Z`)))
  .replace(/(?<![\d:])(\d\d):(\d\d) UTC/g, (_, hours, minutes) => {
    const at = new Date();
    at.setUTCHours(hours, minutes, 0, 0);
    return timeOfDay(at > new Date() ? at - 86_400_000 : at).slice(0, 5);
  });

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// The two largest units of a duration: 2 h 5 min, 3.4 s, 12 ms.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.001) return seconds === 0 ? "0 s" : "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const first = UNITS.findIndex(([size]) => whole >= size);
  const [size, name] = UNITS[first];
  const rest = UNITS[first + 1];
  const more = rest ? Math.floor((whole % size) / rest[0]) : 0;
  return `${Math.floor(whole / size)} ${name}${more ? ` ${more} ${rest[1]}` : ""}`;
}

// Seconds between two moments. They are never zero: the moments of the API are more exact than those of the browser.
export const between = (from, to) => (from && to ? Math.max((new Date(to) - new Date(from)) / 1000, 1e-6) : null);

const UNIT_SECONDS = { s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };
const DAYS = { yesterday: -1, today: 0, tomorrow: 1 };
const CLOCK = /^(?:(yesterday|today|tomorrow)\b *)?(?:(\d\d?):(\d\d)(?::(\d\d))?)?$/i;
export const MOMENTS = "30m, 2h, 1d, 18:00, tomorrow 9:00 or 2030-01-31T18:00";

// The moment that a user means, in the zone of the browser, as the API wants it; null if the text is none. A duration counts from now on,
// or back with `sign` -1, and 18:00 is its next, or its last, occurrence.
export function momentOf(text, sign = 1) {
  const now = new Date();
  const [, size, unit] = /^(\d+(?:\.\d+)?) ?(s|m|min|h|d|w)$/i.exec(text.trim()) ?? [];
  const [isClock, day, hours = 0, minutes = 0, seconds = 0] = (text.trim() && CLOCK.exec(text.trim())) || [];
  let at = new Date(/^\d{4}-\d\d-\d\d$/.test(text.trim()) ? `${text.trim()}T00:00` : /^\d{4}-/.test(text.trim()) ? text.trim() : NaN);
  if (size) at = new Date(+now + sign * size * UNIT_SECONDS[unit.toLowerCase()] * 1000);
  else if (isClock !== undefined && hours < 24 && minutes < 60) {
    const clock = (days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, hours, minutes, seconds);
    at = clock(DAYS[day?.toLowerCase()] ?? 0);
    if (!day && (at - now) * sign < 0) at = clock(sign);
  }
  return Number.isNaN(+at) ? null : at.toISOString();
}

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

// A limit of a job: "2 at once, 10 in 60 s for each room", or its name.
export function limitText({ name, key, max_in_flight: slots, rate }) {
  const each = key ? ` for each ${{ room: "room", submitter: "submitter" }[key] ?? `value of ${key}`}` : "";
  if (name) return `${name}${each}`;
  return `${[slots && `${count(slots)} at once`, rateText(rate)].filter(Boolean).join(", ")}${each}`;
}

export function rateText(rate) {
  if (!rate) return null;
  return `${count(rate.count)} in ${rate.per_seconds} s${rate.burst > 1 ? `, burst ${count(rate.burst)}` : ""}`;
}

/** The labels of a worker, as the command line takes them. */
export const labelsText = (labels) => Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(", ");

/** What a job or a task requires of the labels of its worker. */
export const requirementsText = (requires) =>
  Object.entries(requires ?? {})
    .flatMap(([key, condition]) =>
      typeof condition !== "object"
        ? [`${key}=${condition}`]
        : Object.entries(condition).map(([name, value]) => (name === "in" ? `${key} in ${value.join(", ")}` : `${key}${name}${value}`)),
    )
    .join(" and ");
