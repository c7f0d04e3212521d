/** Event streams (Server-Sent Events) that go on after a lost connection where they stopped. */
import type { CallOptions, Connection } from "./connection.js";
import { JoblibError } from "./errors.js";
import type { GroupStream, RoomStream, SentEvent, TaskStream } from "./events.js";
import { parseJson } from "./json.js";
import { Backoff, isUnreachable, sleep } from "./retry.js";

export interface FollowOptions extends CallOptions {
  /** The `id` of the last event that the caller has: the stream goes on after it. */
  after?: string;
  /** Called when the stream is open, and, with the reason, when it is not: then what a page shows may be old. */
  onConnection?: (isOpen: boolean, reason?: unknown) => void;
}

// The server sends a comment every 15 s.
const SILENT_SECONDS = 40;
// A snapshot has a payload and a result of up to 1 MiB each.
const MAX_EVENT_CHARACTERS = 16 * 1024 * 1024;

/**
 * Yield the events of a stream until its `end`; a room's stream does not end. A snapshot comes first, and again after
 * `resync`. While the server cannot be reached, it goes on trying until the signal is aborted.
 */
export async function* follow<Stream extends TaskStream | RoomStream | GroupStream>(
  connection: Connection,
  path: string,
  { after, signal, onConnection }: FollowOptions = {},
): AsyncGenerator<SentEvent<Stream>, void, undefined> {
  const backoff = new Backoff();
  let last = after;
  for (;;) {
    let pause: number;
    let reason: unknown;
    signal?.throwIfAborted();
    // One controller for each connection: a listener of the signal for each would stay until the end.
    const controller = new AbortController();
    const onAbort = () => controller.abort(signal!.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      const headers = { Accept: "text/event-stream", ...(last !== undefined && { "Last-Event-ID": last }) };
      const response = await connection.open({ method: "GET", path, headers, signal: controller.signal });
      onConnection?.(true);
      for await (const event of eventsOf(response)) {
        // Several events may have come together.
        signal?.throwIfAborted();
        backoff.reset();
        last = event.id ?? last;
        yield event as SentEvent<Stream>;
        if (event.event === "end") return;
      }
      pause = backoff.next();
    } catch (error) {
      signal?.throwIfAborted();
      // A connection that breaks is an error of the platform, a TypeError in all of them.
      if (!isUnreachable(error) && !(error instanceof TypeError)) throw error;
      pause = backoff.after(error);
      reason = error;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
    onConnection?.(false, reason);
    await sleep(pause, signal);
  }
}

interface ParsedEvent {
  event: string;
  data: unknown;
  id?: string;
}

async function* eventsOf(response: Response): AsyncGenerator<ParsedEvent, void, undefined> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    for (;;) {
      timer = setTimeout(() => void reader.cancel().catch(() => undefined), 1000 * SILENT_SECONDS);
      const { value, done } = await reader.read();
      clearTimeout(timer);
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    clearTimeout(timer);
    await reader.cancel().catch(() => undefined);
  }
}

/** Parses Server-Sent Events from pieces of text. */
class EventParser {
  #rest = "";
  #event = "message";
  #id: string | undefined;
  #data: string[] = [];

  *feed(text: string): Generator<ParsedEvent, void, undefined> {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop()!;
    if (this.#rest.length > MAX_EVENT_CHARACTERS) throw new JoblibError("An event of the stream is longer than 16 MiB");
    for (const line of lines) {
      const event = this.#add(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event !== undefined) yield event;
    }
  }

  #add(line: string): ParsedEvent | undefined {
    if (line === "") return this.#take();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
    else if (name === "data") this.#data.push(value);
    return undefined;
  }

  #take(): ParsedEvent | undefined {
    const [event, id, data] = [this.#event, this.#id, this.#data];
    [this.#event, this.#id, this.#data] = ["message", undefined, []];
    if (data.length === 0) return undefined;
    return { event, data: parseJson(data.join("\n")), ...(id !== undefined && { id }) };
  }
}
