/** A task that a worker holds: what its job gets, and what it reports while it runs. */
import type { Connection } from "./connection.js";
import { TaskStopped } from "./errors.js";
import { clean } from "./outcomes.js";
import { Queue, type Payload, type SubmitOptions, type TaskHandle } from "./queue.js";
import { parseJson } from "./json.js";
import { now } from "./retry.js";
import type { LogLine, LogPart, Progress, TaskResponse } from "./rest.js";
import { toJson } from "./values.js";

export type LogLevel = NonNullable<LogLine["level"]>;

const MAX_WAITING_LINES = 10_000;
const MAX_WAITING_CHARACTERS = 1024 * 1024;
const MAX_LINE_CHARACTERS = 8192;
const MAX_PART_LINES = 1000;
const MAX_PART_CHARACTERS = 64 * 1024;
const LINE_CHARACTERS = 64;
const TRUNCATED = " … (truncated)";
// Tokens of tasks are valid for an hour.
const RENEWAL_SECONDS = 900;

/** What a report says of the progress and the log of an attempt. */
export interface LiveReport {
  progress?: Progress;
  log?: LogPart;
  version: number;
}

/** Holds the progress and the log of one attempt until they are reported: at most 10,000 lines, about 1 MiB. */
export class Channel {
  isClosed = false;
  #progress: Progress | undefined;
  #version = 0;
  #reported = 0;
  #lines: LogLine[] = [];
  #first = 1;
  #size = 0;

  constructor(readonly onContent: () => void) {}

  get hasContent(): boolean {
    return !this.isClosed && (this.#lines.length > 0 || this.#version > this.#reported);
  }

  setProgress(changes: Progress): void {
    if (this.isClosed) return;
    this.#progress = { ...this.#progress, ...changes };
    this.#version += 1;
    this.onContent();
  }

  add(text: string, level: LogLevel): void {
    if (this.isClosed) return;
    const at = new Date().toISOString();
    for (const line of text.replace(/\n$/, "").split(/\r\n|\n|\r/)) {
      const short = line.length <= MAX_LINE_CHARACTERS ? line : line.slice(0, MAX_LINE_CHARACTERS - TRUNCATED.length) + TRUNCATED;
      this.#lines.push({ at, text: clean(short), level });
      this.#size += short.length + LINE_CHARACTERS;
    }
    let dropped = 0;
    for (; this.#lines.length - dropped > MAX_WAITING_LINES || this.#size > MAX_WAITING_CHARACTERS; dropped += 1) {
      this.#size -= this.#lines[dropped]!.text.length + LINE_CHARACTERS;
    }
    this.#forget(dropped);
    this.onContent();
  }

  /** Return the next report, undefined if there is none. `acknowledge` it when it has arrived. */
  take(): LiveReport | undefined {
    return this.hasContent ? this.#part(0) : undefined;
  }

  /** Return all reports, each with its part of the log; the last one has the progress. */
  takeAll(): LiveReport[] {
    const reports: LiveReport[] = [];
    for (let from = 0; this.hasContent && (from < this.#lines.length || from === 0); ) {
      const part = this.#part(from);
      reports.push(part);
      from += part.log?.lines.length ?? 1;
    }
    return reports;
  }

  acknowledge(report: LiveReport): void {
    this.#reported = Math.max(this.#reported, report.version);
    if (report.log === undefined) return;
    const count = report.log.first + report.log.lines.length - this.#first;
    for (const line of this.#lines.slice(0, Math.max(0, count))) this.#size -= line.text.length + LINE_CHARACTERS;
    this.#forget(count);
  }

  close(): void {
    this.isClosed = true;
    this.#lines = [];
  }

  #forget(count: number): void {
    if (count <= 0) return;
    this.#lines.splice(0, count);
    this.#first += count;
  }

  #part(from: number): LiveReport {
    const lines: LogLine[] = [];
    let size = 0;
    for (const line of this.#lines.slice(from, from + MAX_PART_LINES)) {
      size += line.text.length + LINE_CHARACTERS;
      if (lines.length > 0 && size > MAX_PART_CHARACTERS) break;
      lines.push(line);
    }
    return {
      ...(this.#version > this.#reported && this.#progress !== undefined && { progress: this.#progress }),
      ...(lines.length > 0 && { log: { first: this.#first + from, lines } }),
      version: this.#version,
    };
  }
}

/** A task that this worker holds. Its job gets it beside the payload. */
export class RunningTask {
  readonly id: string;
  readonly jobName: string;
  readonly roomId: string;
  /** The fencing token of the claim: every report carries it. */
  readonly attempt: number;
  readonly workerId: string;
  /** How many of the worker's slots it takes. */
  readonly cost: number;
  /** Aborted when the task is cancelled, or is lost to this worker: then what the job returns has no effect. */
  readonly signal: AbortSignal;
  readonly channel: Channel;
  readonly #controller = new AbortController();
  readonly #connection: Connection;
  #token: string | undefined;
  #renewedAt = now();

  constructor(
    connection: Connection,
    /** The task as the claim returned it. */
    readonly task: TaskResponse,
    workerId: string,
    onContent: (task: RunningTask) => void,
  ) {
    this.id = task.id;
    this.jobName = task.job_name;
    this.roomId = task.room_id;
    this.attempt = task.attempt;
    this.cost = task.cost ?? 1;
    this.workerId = task.worker_id ?? workerId;
    this.signal = this.#controller.signal;
    this.channel = new Channel(() => onContent(this));
    this.#connection = connection;
    this.#token = task.token ?? undefined;
  }

  /** Report how far the task is. Omitted values keep their last value; `data` is for your own front-end. */
  progress(current: number | null, total?: number | null, details: { unit?: string; message?: string; data?: Payload } = {}): void {
    // It is plain JSON from now on: the job may go on to change `data`.
    const plain = parseJson(toJson({ current, total, ...details }, "progress")) as Progress;
    this.channel.setProgress(plain);
  }

  /** Write lines to the task's log. */
  log(text: string, level: LogLevel = "info"): void {
    this.channel.add(text, level);
  }

  /** A client with the rights of this task alone: what it submits are tasks below this one, in its room. */
  get queue(): Queue {
    const connection = this.#token === undefined ? this.#connection : this.#connection.withToken(() => this.#token!);
    return new Queue({ connection, room: this.roomId, parent: this.id });
  }

  /** Submit a task below this one, in its room by default. A repeated attempt submits it again, unless it has a key. */
  submit(job: string, payload?: Payload, options?: SubmitOptions): Promise<TaskHandle> {
    return this.queue.submit(job, payload, options);
  }

  /** Whether the token of the task is to be renewed. */
  get hasOldToken(): boolean {
    return this.#token !== undefined && now() > this.#renewedAt + RENEWAL_SECONDS;
  }

  renew(token: string): void {
    this.#token = token;
    this.#renewedAt = now();
  }

  stop(reason: TaskStopped["reason"]): void {
    this.channel.close();
    this.#controller.abort(new TaskStopped(this.id, reason));
  }
}
