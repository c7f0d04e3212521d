// JSON whose numbers stay as they were written: 2^53 + 1 and 0.1000 keep all their digits.

// Marks such numbers while they are parsed; unknown to who wrote the text, so no text can pretend to be a number.
const MARK = `\u0000${crypto.getRandomValues(new Uint32Array(2)).join("-")}:`;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

// A number that JavaScript would change: it has its text.
export class Exact {
  constructor(text) {
    this.text = text;
  }
  toString() {
    return this.text;
  }
  valueOf() {
    return Number(this.text);
  }
}

const survives = (text) => String(Number(text)) === text;
// What users wrote keeps every number as it is: 1.0 is no integer to a job. Elsewhere only big integers matter.
const WRITTEN = new Set(["payload", "result", "schema"]);

export function parse(text) {
  const marked = text.replace(TOKEN, (token) =>
    token[0] === '"' || survives(token) ? token : JSON.stringify(MARK + token));
  const value = JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? new Exact(value.slice(MARK.length)) : value);
  return marked === text ? value : relaxed(value);
}

// Return a payload as it was written, for text that a user edits.
export const parseExact = (text) => parse(`{"payload":${text}\n}`).payload;

function relaxed(value) {
  if (value instanceof Exact) {
    const number = Number(value.text);
    return /[.eE]/.test(value.text) || Number.isSafeInteger(number) ? number : value;
  }
  if (value === null || typeof value !== "object") return value;
  for (const key of Object.keys(value)) if (!WRITTEN.has(key)) value[key] = relaxed(value[key]);
  return value;
}

// Like JSON.stringify. `indent` is a number of spaces; without it, the text has no white space.
export function stringify(value, indent = 0, level = 0) {
  if (value instanceof Exact) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((item) => stringify(item, indent, level + 1))
    : Object.entries(value)
      .filter(([, item]) => item !== undefined)
      .map(([name, item]) => `${JSON.stringify(name)}:${indent ? " " : ""}${stringify(item, indent, level + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (!parts.length) return open + close;
  // Short lists of plain values, such as positions of atoms, stay on one line.
  const isShort = isList && parts.join(", ").length <= 88 && parts.every((part) => !/^[[{]/.test(part));
  if (!indent || isShort) return open + parts.join(indent ? ", " : ",") + close;
  const pad = " ".repeat(indent * (level + 1));
  return `${open}\n${pad}${parts.join(`,\n${pad}`)}\n${" ".repeat(indent * level)}${close}`;
}
