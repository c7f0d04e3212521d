/** Reports of a worker: those of tasks that start or end while one request is under way go into the next. */
import type { Connection } from "./connection.js";
import { problemOf } from "./connection.js";
import { ProblemError, UnexpectedResponse } from "./errors.js";
import { refusedOutcome, type Outcome } from "./outcomes.js";
import { Backoff, describe, isContentRefused, isGone, isTransient, now, sleep } from "./retry.js";
import type { BatchResponse } from "./rest.js";
import type { LiveReport, RunningTask } from "./running-task.js";
import { stringifyJson } from "./json.js";
import type { Log } from "./worker.js";

// The start of a task that ends within this time is reported together with its end.
const START_SECONDS = 0.003;
const GATHER_SECONDS = 0.03;
const GATHER_COUNT = 100;
const MAX_REPORTS = 1000;
const MAX_CHARACTERS = 4 * 1024 * 1024;
const MAX_WAITING = 1000;
const MAX_WAITING_CHARACTERS = 32 * 1024 * 1024;
/** Longer than any restart of a server: a success that is not reported is work done twice. */
export const REPORT_SECONDS = 900;
const LIVE_SECONDS = 0.5;
const MAX_LIVE_REPORTS = 500;
// Proxies often refuse bodies of more than a megabyte.
const MAX_LIVE_CHARACTERS = 1024 * 1024;

/** What is to be reported of a task. */
export class Entry {
  outcome: Outcome | undefined;
  endedAt = 0;
  beganAt: number | undefined = now();
  isStarted = false;
  /** Whether its outcome was acknowledged, refused or given up, or this worker does not hold it. */
  isGone = false;
  isReplaced = false;
  failingSince: number | undefined;
  notBefore = 0;
  due = now() + START_SECONDS;
  /** How many characters of the limit it takes. */
  charged = 0;
  readonly backoff = new Backoff();

  constructor(readonly task: RunningTask) {}

  get size(): number {
    return 200 + (this.outcome?.json.length ?? 0);
  }
}

interface Live {
  task: RunningTask;
  report: LiveReport;
  json: string;
}

interface Sent {
  entry: Entry;
  withStart: boolean;
  outcome: Outcome | undefined;
  live: LiveReport[];
  reports: string[];
}

/** Sends the reports of tasks, one request after the other, each repeated for 15 minutes while the server is away. */
export class Reporter {
  readonly #connection: Connection;
  readonly #log: Log;
  readonly #waiting = new Set<Entry>();
  readonly #open = new Set<Entry>();
  readonly #live = new Set<RunningTask>();
  readonly #backoff = new Backoff();
  readonly #stop = new AbortController();
  #notBefore = 0;
  #isHurried = false;
  #characters = 0;
  #wake: (() => void) | undefined;
  #wakesAt = Infinity;
  #liveWake: (() => void) | undefined;

  constructor(
    connection: Connection,
    log: Log,
    /** Called when a task is over for this worker. */
    readonly onOver: (task: RunningTask) => void,
  ) {
    this.#connection = connection;
    this.#log = log;
  }

  /** Whether too many outcomes wait to claim more tasks. */
  get isFull(): boolean {
    return this.#waiting.size >= MAX_WAITING || this.#characters >= MAX_WAITING_CHARACTERS;
  }

  get isIdle(): boolean {
    return this.#open.size === 0;
  }

  /** Report the start of a task, unless it ends within a few milliseconds. */
  begin(task: RunningTask): Entry {
    const entry = new Entry(task);
    this.#open.add(entry);
    this.#waiting.add(entry);
    this.#wakeBy(entry.due);
    return entry;
  }

  /** Report how a task has ended: soon if the worker `isBusy` with others, otherwise now. */
  end(entry: Entry, outcome: Outcome, isBusy: boolean): void {
    if (entry.isGone) return;
    entry.outcome = outcome;
    entry.endedAt = now();
    entry.charged = entry.size;
    this.#characters += entry.charged;
    this.#waiting.add(entry);
    this.#isHurried ||= !isBusy || this.#waiting.size >= GATHER_COUNT;
    entry.due = entry.endedAt + GATHER_SECONDS;
    this.#wakeBy(this.#isHurried ? 0 : entry.due);
  }

  /** Forget a task that this worker does not hold: its outcome is not reported. */
  drop(task: RunningTask): void {
    for (const entry of this.#open) if (entry.task === task) this.#finish(entry);
  }

  /** Whether the outcome of a task is being reported: only the answer to that report ends it. */
  isReporting(task: RunningTask): boolean {
    return [...this.#open].some((entry) => entry.task === task && entry.outcome !== undefined);
  }

  /** Report the progress and the log of a task soon: at most twice a second, together with those of others. */
  addLive(task: RunningTask): void {
    this.#live.add(task);
    this.#liveWake?.();
  }

  /** Repeat reports no longer; end when each has been tried. */
  stop(): void {
    this.#stop.abort();
    this.#wakeBy(0);
    this.#liveWake?.();
  }

  /** Send reports until it is stopped. */
  async run(): Promise<void> {
    for (;;) {
      const batch = await this.#next();
      if (batch.length === 0) return;
      await this.#try(batch);
    }
  }

  /** Send the progress and the logs of running tasks until it is stopped. */
  async runLive(): Promise<void> {
    const backoff = new Backoff();
    while (!this.#stop.signal.aborted) {
      if (this.#live.size === 0) await new Promise<void>((resolve) => (this.#liveWake = resolve));
      await sleep(LIVE_SECONDS, this.#stop.signal).catch(() => undefined);
      if (this.#stop.signal.aborted) return;
      try {
        await this.#sendLive();
        backoff.reset();
      } catch (error) {
        this.#log("info", `Reporting progress: ${describe(error)}`);
        await sleep(backoff.after(error), this.#stop.signal).catch(() => undefined);
      }
    }
  }

  #wakeBy(due: number): void {
    if (due < this.#wakesAt) this.#wake?.();
  }

  async #next(): Promise<Sent[]> {
    for (;;) {
      const wait = this.#secondsUntilDue();
      if (wait <= 0) return this.#take();
      if (this.#stop.signal.aborted) return [];
      this.#wakesAt = now() + wait;
      await new Promise<void>((resolve) => {
        const timer = Number.isFinite(wait) ? setTimeout(resolve, Math.ceil(1000 * wait)) : undefined;
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#wakesAt = -Infinity;
    }
  }

  #secondsUntilDue(): number {
    if (this.#waiting.size === 0) return Infinity;
    if (this.#stop.signal.aborted) return 0;
    let first = Infinity;
    for (const entry of this.#waiting) {
      const due = this.#isHurried && entry.outcome !== undefined ? 0 : entry.due;
      first = Math.min(first, Math.max(entry.notBefore, due));
    }
    return Math.max(first, this.#notBefore) - now();
  }

  #take(): Sent[] {
    const batch: Sent[] = [];
    let [characters, count] = [0, 0];
    for (const entry of [...this.#waiting]) {
      if (entry.notBefore > now() && !this.#stop.signal.aborted) continue;
      const sent = sentOf(entry);
      characters += sent.reports.reduce((sum, report) => sum + report.length, 0);
      count += sent.reports.length;
      const isOther = batch.length > 0 && batch[0]!.entry.task.workerId !== entry.task.workerId;
      if (isOther || (batch.length > 0 && (characters > MAX_CHARACTERS || count > MAX_REPORTS))) break;
      this.#waiting.delete(entry);
      batch.push(sent);
    }
    this.#isHurried &&= this.#waiting.size > 0;
    return batch;
  }

  /** Send reports; those of each task on their own if the server refuses the content of the request. */
  async #try(batch: Sent[]): Promise<void> {
    try {
      const results = await this.#post(batch[0]!.entry.task.workerId, batch.flatMap((sent) => sent.reports));
      this.#backoff.reset();
      let at = 0;
      for (const sent of batch) {
        this.#settle(sent, results.slice(at, at + sent.reports.length));
        at += sent.reports.length;
      }
    } catch (error) {
      if (batch.length > 1 && isContentRefused(error)) {
        for (const sent of batch) await this.#try([sent]);
        return;
      }
      const pause = this.#backoff.after(error);
      this.#notBefore = now() + pause;
      this.#log("warning", `Reporting: ${describe(error)}; trying again in ${pause.toFixed(1)} s`);
      for (const sent of batch) this.#handle(sent, error, 0);
    }
  }

  async #post(workerId: string, reports: string[]): Promise<(ProblemError | undefined)[]> {
    const content = `{"worker_id":"${workerId}","reports":[${reports.join(",")}]}`;
    const headers = { Prefer: "return=minimal" };
    const { data } = await this.#connection.once<BatchResponse>({ method: "POST", path: "/tasks/report", content, headers });
    if (!Array.isArray(data?.results) || data.results.length !== reports.length) {
      throw new UnexpectedResponse("The response to reports has not a result for each", 200);
    }
    return data.results.map((item) => (item.problem == null ? undefined : problemOf(item.status, { ...item.problem })));
  }

  #settle(sent: Sent, errors: (ProblemError | undefined)[]): void {
    const { entry, outcome } = sent;
    entry.isStarted ||= errors[0] === undefined;
    // The repeat of a start is refused if the outcome has arrived; the repeat of the outcome is not.
    const hasEnded = outcome !== undefined && errors.at(-1) === undefined;
    const error = hasEnded ? undefined : errors.find((one) => one !== undefined);
    if (error !== undefined) return this.#handle(sent, error, now() + entry.backoff.after(error));
    entry.isStarted = true;
    entry.failingSince = undefined;
    if (outcome !== undefined) this.#finish(entry);
  }

  /** Repeat a report that failed, replace an outcome that is refused, or give the task up. */
  #handle(sent: Sent, error: unknown, notBefore: number): void {
    const { entry } = sent;
    if (entry.isGone || (entry.isStarted && sent.outcome === undefined)) return;
    entry.failingSince ??= now();
    if (isGone(error)) {
      this.#log("info", `Task ${entry.task.id} is no longer held by this worker: ${describe(error)}`);
      entry.task.stop("lost");
    } else if (isContentRefused(error) && sent.live.length > 0) {
      this.#log("warning", `The log of task ${entry.task.id} is lost: ${describe(error)}`);
      entry.task.channel.close();
      this.#waiting.add(entry);
      return;
    } else if (isContentRefused(error) && sent.outcome !== undefined && !entry.isReplaced) {
      entry.outcome = refusedOutcome(`The server refused the ${sent.outcome.error === undefined ? "result" : "text of the error"}: ${describe(error)}`);
      entry.isReplaced = true;
      this.#waiting.add(entry);
      return;
    } else if (isTransient(error) && !this.#stop.signal.aborted && now() - entry.failingSince < REPORT_SECONDS) {
      entry.notBefore = notBefore;
      this.#waiting.add(entry);
      return;
    } else {
      this.#log("warning", `Gave up task ${entry.task.id}: ${describe(error)}`);
    }
    this.#finish(entry);
  }

  #finish(entry: Entry): void {
    if (entry.isGone) return;
    entry.isGone = true;
    this.#waiting.delete(entry);
    this.#open.delete(entry);
    this.#live.delete(entry.task);
    this.#characters -= entry.charged;
    entry.task.channel.close();
    this.onOver(entry.task);
  }

  async #sendLive(): Promise<void> {
    const sent: Live[] = [];
    const [first] = this.#live;
    let characters = 0;
    for (const task of this.#live) {
      if (task.workerId !== first!.workerId || sent.length >= MAX_LIVE_REPORTS) break;
      const report = task.channel.take();
      if (report === undefined) {
        this.#live.delete(task);
        continue;
      }
      const json = `{${fenced(task)},${liveJson(report)}}`;
      characters += json.length;
      if (sent.length > 0 && characters > MAX_LIVE_CHARACTERS) break;
      sent.push({ task, report, json });
    }
    if (sent.length === 0) return;
    await this.#sendParts(sent);
  }

  /** Send parts; one by one if the server refuses the content of the request. What can never arrive is forgotten. */
  async #sendParts(sent: Live[]): Promise<void> {
    let results: unknown[];
    try {
      results = await this.#post(sent[0]!.task.workerId, sent.map(({ json }) => json));
    } catch (error) {
      if (!isContentRefused(error)) throw error;
      if (sent.length > 1) {
        for (const part of sent) await this.#sendParts([part]);
        return;
      }
      results = [error];
    }
    for (const [index, { task, report }] of sent.entries()) {
      const error = results[index];
      if (error === undefined || isContentRefused(error)) task.channel.acknowledge(report);
      else if (isGone(error)) task.channel.close();
      // One with more content waits behind the others.
      if (this.#live.delete(task) && task.channel.hasContent) this.#live.add(task);
    }
  }
}

function fenced(task: RunningTask): string {
  return `"id":"${task.id}","attempt":${task.attempt}`;
}

function liveJson({ progress, log }: LiveReport): string {
  return stringifyJson({ ...(progress && { progress }), ...(log && { log }) }).slice(1, -1);
}

function sentOf(entry: Entry): Sent {
  const { task, outcome } = entry;
  const withStart = !entry.isStarted && entry.beganAt !== undefined;
  const live = outcome === undefined ? [] : task.channel.takeAll();
  const token = fenced(task);
  const began = entry.beganAt === undefined ? "" : `,"started_ago":${(now() - entry.beganAt).toFixed(6)}`;
  const reports = withStart ? [`{${token}${began},"status":"running"}`] : [];
  for (const report of live.slice(0, -1)) reports.push(`{${token},${liveJson(report)}}`);
  if (outcome !== undefined) {
    const last = live.length > 0 ? `,${liveJson(live.at(-1)!)}` : "";
    const ended = entry.beganAt === undefined ? "" : `${began},"ended_ago":${(now() - entry.endedAt).toFixed(6)}`;
    reports.push(`{${token}${ended}${last},${outcome.json}}`);
  }
  return { entry, withStart, outcome, live, reports };
}
