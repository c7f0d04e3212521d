/** How a task has ended, and how that is reported. */
import { NonRetryable, NotSerializable, Retry } from "./errors.js";
import { describe } from "./retry.js";
import { contentOf, toJson, type Content } from "./values.js";

/** The end of a task: `json` are the fields of its report, without the braces around them. */
export interface Outcome {
  json: string;
  /** Uploaded before the report. */
  content?: Content;
  error?: string;
}

const MAX_JSON_BYTES = 1024 * 1024;
const MAX_ERROR_CHARACTERS = 16 * 1024;
const MAX_TRACEBACK_CHARACTERS = 32 * 1024;
const MAX_TYPES = 32;
const MAX_TYPE_CHARACTERS = 256;
const TRUNCATED = " … (truncated)";

/** Return the outcome of a job that returned a value. */
export function completed(value: unknown): Outcome {
  try {
    const content = contentOf(value);
    if (content !== undefined) return { json: '"status":"completed"', content };
    const json = toJson(value === undefined ? null : value, "result");
    if (json.length > MAX_JSON_BYTES / 3) {
      const bytes = new TextEncoder().encode(json);
      if (bytes.length > MAX_JSON_BYTES) return { json: '"status":"completed"', content: { data: bytes, contentType: "application/json" } };
    }
    return { json: `"status":"completed","result":${json}` };
  } catch (error) {
    const isOurs = error instanceof NotSerializable || error instanceof TypeError || error instanceof RangeError;
    return isOurs ? refusedOutcome(describe(error), "result-not-serializable") : failed(error);
  }
}

/** Return the outcome of a job that threw, whatever it threw. */
export function failed(thrown: unknown): Outcome {
  try {
    return failedWith(thrown);
  } catch {
    return refusedOutcome(describe(thrown)); // even its properties throw
  }
}

function failedWith(thrown: unknown): Outcome {
  const error = bounded(describe(thrown).replace(/: $/, ""), MAX_ERROR_CHARACTERS);
  const fields = {
    status: "failed",
    error,
    ...(thrown instanceof NonRetryable && { retry: false }),
    ...(thrown instanceof Retry && thrown.afterSeconds !== undefined && { retry_after_seconds: thrown.afterSeconds }),
    ...(thrown instanceof Error && { error_types: typesOf(thrown), failure: failureOf(thrown) }),
  };
  return { json: toJson(fields).slice(1, -1), error };
}

/** Return the failure of a task whose result or text the server does not take, or that cannot run here. */
export function refusedOutcome(text: string, code?: "result-not-serializable" | "predecessor-result-invalid"): Outcome {
  const error = bounded(text, MAX_ERROR_CHARACTERS);
  const fields = { status: "failed", error, ...(code !== undefined && { error_code: code }) };
  return { json: toJson(fields).slice(1, -1), error };
}

function typesOf(error: Error): string[] {
  const names: unknown[] = [error.name];
  for (let kind: object | null = Object.getPrototypeOf(error); kind !== null && kind !== Object.prototype; kind = Object.getPrototypeOf(kind)) {
    names.push(kind.constructor?.name);
  }
  const isName = (name: unknown): name is string => typeof name === "string" && name !== "" && name.length <= MAX_TYPE_CHARACTERS;
  return [...new Set(names)].filter(isName).slice(0, MAX_TYPES);
}

function failureOf(error: Error): Record<string, unknown> {
  const stack = stackOf(error);
  const full = [stack];
  const seen = new Set<unknown>([error]);
  for (let cause = error.cause; cause instanceof Error && !seen.has(cause); cause = cause.cause) {
    seen.add(cause);
    full.push(`Caused by: ${stackOf(cause)}`);
  }
  return {
    type: String(error.name || error.constructor.name).slice(0, MAX_TYPE_CHARACTERS),
    traceback: bounded(stack, MAX_TRACEBACK_CHARACTERS),
    full_traceback: bounded(full.join("\n"), MAX_TRACEBACK_CHARACTERS),
  };
}

/** Return the stack of an error; libraries have set it to other values than texts. */
function stackOf(error: Error): string {
  const stack: unknown = error.stack;
  return wellFormed(typeof stack === "string" ? stack : describe(error));
}

function bounded(text: string, limit: number): string {
  const whole = clean(text);
  return whole.length <= limit ? whole : wellFormed(whole.slice(0, limit - TRUNCATED.length)) + TRUNCATED;
}

/** Return text that JSON and every database can store: without halves of surrogate pairs and NUL. */
export function clean(text: string): string {
  return wellFormed(text).replaceAll("\0", "\\x00");
}

/** Replace halves of surrogate pairs, which are not JSON. */
function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
