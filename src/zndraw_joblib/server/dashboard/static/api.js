// Requests to the API: identity, problems, JSON with exact numbers, and streams of events.
import { config, refused, token } from "./auth.js";
import { signal } from "./lib.js";
import { parse, stringify } from "./json.js";

// Null while the server answers; else the moment since when it does not.
export const lostSince = signal(null);

// An answer that is no success: `status`, and the fields of the problem (RFC 9457).
export class Problem extends Error {
  constructor(status, fields) {
    super(fields.detail || fields.title || `The server answered with status ${status}`);
    this.status = status;
    this.fields = fields;
  }
}

// The server did not answer at all.
export class Unreachable extends Error {}

export function url(path, query = {}) {
  const address = new URL(`${config.value.api}${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    for (const item of [value].flat()) {
      if (item !== undefined && item !== null && item !== "") address.searchParams.append(name, String(item));
    }
  }
  return address;
}

// The headers by which a host without cookies knows the user, from a module of the host.
let hostHeaders = () => ({});
export async function loadHostHeaders() {
  if (config.value.headers) hostHeaders = (await import(new URL(config.value.headers, document.baseURI))).default;
}

async function headersFor(more) {
  const headers = { ...(await hostHeaders()), Accept: "application/json", ...more };
  if (token.value) headers.Authorization = `Bearer ${token.value}`;
  if (config.value.read_only) headers["X-Joblib-Read-Only"] = "1";
  return headers;
}

async function send(method, path, { query, body, headers, signal: abort } = {}) {
  const options = { method, headers: await headersFor(headers), signal: abort, cache: "no-store" };
  options.credentials = config.value.identity === "host" ? "same-origin" : "omit";
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const used = token.value;
  let response;
  try {
    response = await fetch(url(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lostSince.value ??= new Date();
    throw new Unreachable("The server cannot be reached.");
  }
  if (response.ok) {
    lostSince.value = null;
    return response;
  }
  // A proxy answers so while its server is gone.
  if ([502, 504].includes(response.status)) lostSince.value ??= new Date();
  else lostSince.value = null;
  const problem = new Problem(response.status, await fieldsOf(response));
  if (response.status === 401 && used === token.value) refused.value = problem;
  throw problem;
}

async function fieldsOf(response) {
  try {
    const fields = parse(await response.text());
    return fields && typeof fields === "object" ? fields : {};
  } catch {
    return {};
  }
}

// Return the parsed answer; null if it has no body. Raises Problem and Unreachable.
export async function request(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text ? parse(text) : null;
}

export const get = (path, query, options) => request("GET", path, { query, ...options });

const PART = 200;
const MAX_PARTS = 5;

// Read the parts of a list after a cursor, at most 1,000 items: { items, next }.
export async function readParts(path, query, options) {
  let [items, next] = [[], query.cursor];
  for (let part = 0; part < MAX_PARTS && (next || part === 0); part += 1) {
    const answer = await get(path, { ...query, cursor: next, limit: PART }, options);
    items = [...items, ...answer.items];
    next = answer.next;
  }
  return { items, next };
}

// An unsafe request gets an Idempotency-Key, so that repeating it after a lost answer changes nothing twice.
export function act(method, path, body, { key = newKey(), ...options } = {}) {
  return request(method, path, { body, headers: { "Idempotency-Key": key }, ...options });
}

export function newKey() {
  // crypto.randomUUID exists only in secure contexts, and the page works over plain HTTP.
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Return the response itself, for results that are no JSON.
export const download = (path, options) => send("GET", path, options);

// Read a stream of Server-Sent Events once; call `on(event, data, id)` for each. Returns when the stream ends.
export async function readEvents(path, { query, last, signal: abort, onOpen, on }) {
  const headers = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
  const response = await send("GET", path, { query, headers, signal: abort });
  onOpen?.();
  let text = "";
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (text + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      text = blocks.pop();
      for (const block of blocks) emit(block, on);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function emit(block, on) {
  const message = { event: "message", data: [], id: undefined };
  for (const line of block.split(/\r?\n/)) {
    const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (name === "data") message.data.push(value);
    else if (name) message[name] = value;
  }
  if (message.data.length) on(message.event, parse(message.data.join("\n")), message.id);
}
