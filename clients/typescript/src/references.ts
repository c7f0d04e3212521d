/** Results of other tasks that a payload refers to: too large for the payload itself, they are read before the job runs. */
import { filledPath, type Connection } from "./connection.js";
import { JoblibError } from "./errors.js";
import type { GroupResult } from "./events.js";
import { parseJson } from "./json.js";
import { ResultExpired } from "./problems.js";
import type { Payload } from "./queue.js";
import { decodeContent, encode } from "./values.js";

/** A payload cannot have a result: it has no such part, its content is invalid, or it is gone. */
export class UnusableResult extends JoblibError {
  override readonly name: string = "UnusableResult";
}

interface Reference {
  task: string;
  pointer: string;
}

/** Return a payload with results in the places of references to them; the same object if it has none. */
export async function withResults(connection: Connection, payload: Payload, taskId: string): Promise<Payload> {
  const results = new Map<string, Promise<unknown>>();
  const once = (key: string, read: () => Promise<unknown>): Promise<unknown> => {
    const known = results.get(key) ?? read();
    results.set(key, known);
    return known;
  };
  return (await replaced(payload, async (node) => {
    const group = groupOf(node);
    if (group !== undefined) return once(`group ${group}`, () => groupResults(connection, group, taskId));
    const reference = referenceOf(node);
    if (reference === undefined) return node;
    const value = await once(reference.task, () => predecessorResult(connection, reference.task, taskId));
    return partOf(value, reference);
  })) as Payload;
}

async function replaced(node: unknown, valueOf: (node: Record<string, unknown>) => Promise<unknown>): Promise<unknown> {
  if (Array.isArray(node)) {
    const parts: unknown[] = [];
    for (const part of node) parts.push(typeof part === "object" && part !== null ? await replaced(part, valueOf) : part);
    return parts.some((part, index) => part !== node[index]) ? parts : node;
  }
  if (typeof node !== "object" || node === null) return node;
  const fields = node as Record<string, unknown>;
  const value = await valueOf(fields);
  if (value !== node) return value;
  const entries: [string, unknown][] = [];
  for (const [key, part] of Object.entries(fields)) {
    entries.push([key, typeof part === "object" && part !== null ? await replaced(part, valueOf) : part]);
  }
  return entries.some(([key, part]) => part !== fields[key]) ? Object.fromEntries(entries) : node;
}

function hasKeys(node: Record<string, unknown>, first: string): boolean {
  return Object.keys(node).length === 2 && first in node && typeof node["id"] === "string";
}

function groupOf(node: Record<string, unknown>): string | undefined {
  return hasKeys(node, "$group") && node["$group"] === "results" ? String(node["id"]) : undefined;
}

function referenceOf(node: Record<string, unknown>): Reference | undefined {
  if (!hasKeys(node, "$result")) return undefined;
  const { pointer = "" } = (node["$result"] ?? {}) as { pointer?: unknown };
  return typeof pointer === "string" ? { task: String(node["id"]), pointer } : undefined;
}

async function groupResults(connection: Connection, group: string, taskId: string): Promise<unknown[]> {
  const path = filledPath("/groups/{group}/results", { group });
  const { data } = await connection.bytes({ method: "GET", path, query: { on_end_task: taskId }, timeoutSeconds: 300 });
  const lines = new TextDecoder().decode(data).split("\n").filter((line) => line.trim() !== "");
  return lines.map((line) => (parseJson(line) as GroupResult).result);
}

async function predecessorResult(connection: Connection, predecessor: string, taskId: string): Promise<unknown> {
  const path = filledPath("/tasks/{predecessor}/result", { predecessor });
  const query = { successor: taskId };
  try {
    const { data, headers } = await connection.bytes({ method: "GET", path, query, timeoutSeconds: 300 });
    // An older server would return any result that the worker may read.
    if (headers.get("Successor") !== taskId) throw new JoblibError(`The server does not say that task ${taskId} waited for ${predecessor}`);
    return encode(decodeContent(data, headers.get("Content-Type") ?? ""), "result");
  } catch (error) {
    if (!(error instanceof ResultExpired || error instanceof SyntaxError || error instanceof RangeError)) throw error;
    throw new UnusableResult(`The result of task ${predecessor}: ${error.message}`, { cause: error });
  }
}

function partOf(value: unknown, { task, pointer }: Reference): unknown {
  let part = value;
  for (const step of pointer.split("/").slice(1)) {
    const name = step.replaceAll("~1", "/").replaceAll("~0", "~");
    const isThere = Array.isArray(part) ? /^(0|[1-9]\d*)$/.test(name) && Number(name) < part.length : typeof part === "object" && part !== null && Object.hasOwn(part, name);
    if (!isThere) throw new UnusableResult(`The result of task ${task} has nothing at ${JSON.stringify(pointer)}`);
    part = (part as Record<string, unknown>)[name];
  }
  return part;
}
