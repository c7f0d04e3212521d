/** JSON with big integers: an integer that a number cannot hold is parsed as BigInt, and a BigInt is written as one. */

// A reviver gets the text of a value on newer platforms (Node 21, browsers of 2023); JSON.rawJSON came with it.
type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;
const parseWith = JSON.parse as (text: string, reviver: Reviver) => unknown;
const rawJson = (JSON as { rawJSON?: (text: string) => unknown }).rawJSON;
const HAS_SOURCE = parseWith("1", (_key, _value, context) => context?.source) === "1";

// Only a text with at least 16 digits in a row can have an integer above 2^53.
const LONG_INTEGER = /\d{16}/;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const INTEGER = /^-?\d+$/;
const QUOTE = 34, BACKSLASH = 92, MINUS = 45, ZERO = 48, NINE = 57;

/** Parse JSON. An integer beyond `Number.MAX_SAFE_INTEGER` becomes a BigInt; other numbers are as usual. */
export function parseJson(text: string): unknown {
  if (!LONG_INTEGER.test(text)) return JSON.parse(text);
  if (HAS_SOURCE) return parseWith(text, (_key, value, context) => revived(value, context?.source));
  JSON.parse(text); // what the scanner reads is valid JSON
  const mark = freshMark();
  return JSON.parse(markIntegers(text, mark), (_key, value: unknown) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

function revived(value: unknown, source: string | undefined): unknown {
  const isBig = typeof value === "number" && !Number.isSafeInteger(value) && source !== undefined;
  return isBig && INTEGER.test(source) ? BigInt(source) : value;
}

/** Write JSON in which BigInts are numbers. Throws a TypeError for a value that JSON has no notation for. */
export function stringifyJson(value: unknown): string {
  try {
    return checked(JSON.stringify(value));
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  if (rawJson !== undefined) {
    return checked(JSON.stringify(value, (_key, part: unknown) => (typeof part === "bigint" ? rawJson(`${part}`) : part)));
  }
  const mark = freshMark();
  const text = JSON.stringify(value, (_key, part: unknown) => (typeof part === "bigint" ? `${mark}${part}` : part));
  return checked(text).replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

function checked(text: string | undefined): string {
  if (text === undefined) throw new TypeError("undefined, functions and symbols are not JSON: send null instead");
  return text;
}

// No text of another program begins with it.
function freshMark(): string {
  return `bigint-${randomId()}-`;
}

/** Return a random UUID, also on a page without a secure context, which has no `crypto.randomUUID`. */
export function randomId(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Return valid JSON with each big integer as a text that begins with `mark`. */
function markIntegers(text: string, mark: string): string {
  const parts: string[] = [];
  let from = 0;
  for (let at = 0; at < text.length; ) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) {
      at = endOfString(text, at);
    } else if (code === MINUS || (code >= ZERO && code <= NINE)) {
      NUMBER.lastIndex = at;
      const number = NUMBER.exec(text)![0];
      if (INTEGER.test(number) && !Number.isSafeInteger(Number(number))) {
        parts.push(text.slice(from, at), `"${mark}${number}"`);
        from = at + number.length;
      }
      at += number.length;
    } else {
      at += 1;
    }
  }
  return parts.join("") + text.slice(from);
}

/** Return the index behind the text that begins with the quote at `start`. */
function endOfString(text: string, start: number): number {
  for (let end = start; ; ) {
    end = text.indexOf('"', end + 1);
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === BACKSLASH) backslashes += 1;
    if (backslashes % 2 === 0) return end + 1;
  }
}
