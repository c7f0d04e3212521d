/** The worker: it claims tasks, runs them and reports how they ended. */
import { appliedWait, Connection, filledPath, newKey, type ConnectionOptions } from "./connection.js";
import { JoblibError, ProblemError, UnexpectedResponse, type TaskStopped } from "./errors.js";
import { Lookahead } from "./lookahead.js";
import { completed, failed, refusedOutcome, type Outcome } from "./outcomes.js";
import { ResultStoreFull, Unauthorized, WorkerNotFound } from "./problems.js";
import type { Payload } from "./queue.js";
import { UnusableResult, withResults } from "./references.js";
import { Reporter, REPORT_SECONDS } from "./reporter.js";
import type { JobRegisterRequest, TaskClaimResponse, TaskResponse, WorkerInfo, WorkerResponse } from "./rest.js";
import { after, Backoff, describe, isGone, isTransient, isUnauthorized, now, RefusedToken, repeated, sleep, statusOf } from "./retry.js";
import { RunningTask } from "./running-task.js";
import { stringifyJson } from "./json.js";
import { decode, type Content } from "./values.js";

export { NonRetryable, Retry, TaskStopped } from "./errors.js";
export { RunningTask, type LogLevel } from "./running-task.js";
export { ResultFile } from "./values.js";

/** A job: it gets the payload, in which arrays are `NdArray`, and the running task; what it returns is the result. */
export type JobFunction = (payload: Payload & Record<string, any>, task: RunningTask) => unknown;

/** The retry policy and the limits of a job, by their names in the REST API, and where it is registered. */
export type JobOptions = Omit<JobRegisterRequest, "name" | "category" | "worker_id" | "worker" | "max_tasks"> & {
  /** `@global` by default: all rooms see the job. */
  room?: string;
  /** `jobs` by default, which every server allows. */
  category?: string;
};

export type Log = (level: "debug" | "info" | "warning" | "error", message: string) => void;

export interface JobWorkerOptions extends ConnectionOptions {
  /** How many tasks it runs at once: its slots, of which a task with a cost takes several. */
  concurrency?: number;
  /** How many tasks it claims ahead at most, while tasks are short. */
  prefetch?: number;
  /** What lists of workers show. */
  name?: string;
  /** What tasks may require of it. */
  labels?: NonNullable<WorkerInfo["labels"]>;
  /** For how long it tries to register while the server cannot be reached. */
  connectSeconds?: number;
  log?: Log;
}

export interface RunOptions {
  /** Aborting it drains the worker, as `stop` does. */
  signal?: AbortSignal;
  /** In Node: SIGTERM and SIGINT drain the worker, a second one ends the process. */
  exitSignals?: boolean;
  /** After this number of seconds of draining, the tasks that still run return to their queues. By default they end. */
  drainSeconds?: number;
}

interface Job {
  room: string;
  category: string;
  name: string;
  options: Omit<JobOptions, "room" | "category">;
  run: JobFunction;
}

interface Waiting {
  task: RunningTask;
  claimedAt: number;
}

interface NodeProcess {
  pid: number;
  on(name: string, act: () => void): void;
  off(name: string, act: () => void): void;
  exit(code: number): never;
}

const POLL_SECONDS = 20;
const PAUSE_SECONDS = 2;
const EARLY_PAUSE_SECONDS = 0.1;
const LONG_POLL_SECONDS = 5;
const LAST_RESPONSE_SECONDS = 0.1;
const LEAVE_SECONDS = 5;
// For the running tasks to notice that they are lost.
const REFUSED_END_SECONDS = 5;
const SHORTEST_INTERVAL_SECONDS = 2;
const HEARTBEATS_PER_INFO = 10;
const MAX_NAMED_TASKS = 1000;
const MAX_RELEASED_TASKS = 1000;
const CHECK_SECONDS = 0.05;
// After a pause of the process, a task that waited here may be another worker's.
const SURE_SECONDS = 1;
// A token that has ended is replaced at once by a function that fetches one, or else later; a proxy that refuses a long body does so again.
const UNAUTHORIZED_SECONDS = 30;
const TOO_LARGE_SECONDS = 30;
const SIGNALS: readonly [string, number][] = [["SIGTERM", 15], ["SIGINT", 2]];

/** Claims the tasks of its jobs, runs up to `concurrency` at once, and reports them. */
export class JobWorker {
  readonly connection: Connection;
  readonly #concurrency: number;
  readonly #info: WorkerInfo;
  readonly #connectSeconds: number;
  readonly #log: Log;
  readonly #jobs = new Map<string, Job>();
  readonly #held = new Map<string, RunningTask>();
  readonly #waiting: Waiting[] = [];
  /** Their functions have ended, and their results are uploaded: they need not run again. */
  readonly #uploading = new Set<RunningTask>();
  readonly #lookahead: Lookahead;
  readonly #reporter: Reporter;
  readonly #change = new Change();
  readonly #heartbeatDue = new Change();
  readonly #stopping = new AbortController();
  readonly #left = new AbortController();
  #poll: AbortController | undefined;
  #running = 0;
  /** How many slots the running tasks take: a task may take several. */
  #used = 0;
  #workerId = "";
  /** The worker that replaces this one, until its jobs are registered. */
  #successor: string | undefined;
  #interval = SHORTEST_INTERVAL_SECONDS;
  #heartbeats = 0;
  #unanswered: { claim_id: string; max: number } | undefined;
  #renewing: Promise<void> | undefined;
  /** Whether tasks that did not start could not be given back while it stops. */
  #hasKept = false;
  #refusal: unknown;
  /** When it ends although tasks run: the server has refused its token for long. */
  #endsBy = Infinity;
  #hasBegun = false;

  constructor(options: JobWorkerOptions = {}) {
    const { concurrency = 1, prefetch = 100, name, labels, connectSeconds = 60, log = logToConsole } = options;
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new RangeError(`concurrency: ${concurrency} is not a number of tasks, 1 or more`);
    this.connection = new Connection(options);
    const refused = new RefusedToken((error) => this.#endRefused(error));
    // A function may return another token at any time.
    if (!this.connection.hasTokenFunction) this.connection.onResponse = (error) => refused.note(error);
    this.#concurrency = concurrency;
    this.#connectSeconds = connectSeconds;
    this.#log = guarded(log);
    const pid = nodeProcess()?.pid;
    this.#info = { slots: concurrency, ...(name !== undefined && { name }), ...(labels && { labels }), ...(pid && { pid }) };
    this.#lookahead = new Lookahead(concurrency, Math.min(prefetch, 1000));
    this.#reporter = new Reporter(this.connection, this.#log, (task) => this.#release(task));
  }

  /** The id of the worker at the server; empty before `run`. */
  get id(): string {
    return this.#workerId;
  }

  /** Serve a job. Tasks of it wait while no worker runs, unless `without_workers` says otherwise. */
  job(name: string, run: JobFunction, options: JobOptions = {}): this {
    if (this.#hasBegun) throw new JoblibError(`job ${name}: name the jobs of a worker before run()`);
    const { room = "@global", category = "jobs", ...policy } = options;
    const defaults = { without_workers: "queue" as const };
    this.#jobs.set(`${room}:${category}:${name}`, { room, category, name, options: { ...defaults, ...policy }, run });
    return this;
  }

  /** Register the jobs, then run tasks until `stop`, a signal, or until an operator drains the worker. */
  async run(options: RunOptions = {}): Promise<void> {
    if (this.#hasBegun) throw new JoblibError("A worker runs once: make another one");
    this.#hasBegun = true;
    const stop = () => this.stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    if (options.signal?.aborted) this.stop();
    const restore = options.exitSignals === true ? handleSignals(stop) : () => undefined;
    try {
      await this.#enter();
      await this.#work(options.drainSeconds);
    } catch (error) {
      const { signal } = this.#stopping;
      if (!signal.aborted || error !== signal.reason) throw error; // it was stopped before it was registered
    } finally {
      this.#left.abort();
      options.signal?.removeEventListener("abort", stop);
      restore();
    }
    if (this.#refusal !== undefined) throw this.#refusal;
  }

  /** Claim no more, let running tasks end, and leave: `run` resolves then. */
  stop(): void {
    if (this.#stopping.signal.aborted) return;
    this.#stopping.abort();
    this.#change.notify();
  }

  async #enter(): Promise<void> {
    const { signal } = this.#stopping;
    this.#workerId = await this.#create(signal);
    try {
      for (const job of this.#jobs.values()) await this.#register(job, this.#workerId, signal);
    } catch (error) {
      await this.#leave();
      throw error;
    }
    this.#log("info", `Worker ${this.#workerId} serves ${[...this.#jobs.keys()].join(", ")}`);
  }

  async #work(drainSeconds?: number): Promise<void> {
    const reports = this.#reporter.run();
    const live = this.#reporter.runLive();
    const heartbeats = this.#sendHeartbeats();
    const claims = this.#claim();
    await until(this.#stopping.signal);
    this.#log("info", `Worker ${this.#workerId} claims no more; it waits for ${this.#running} running task(s)`);
    await this.#stopClaiming(claims);
    const isIdle = await this.#idle(drainSeconds);
    if (!isIdle) await this.#requeue();
    this.#reporter.stop();
    await Promise.all([reports, live]);
    this.#left.abort();
    this.#heartbeatDue.notify();
    await heartbeats;
    await this.#leave();
    this.#log("info", `Worker ${this.#workerId} has left`);
  }

  // Registration

  async #create(signal?: AbortSignal): Promise<string> {
    const { data } = await this.#persistently<WorkerResponse>("POST", "/workers", this.#info, signal);
    this.#interval = Math.max(data.heartbeat_interval_seconds, 0.1);
    return data.id;
  }

  async #register(job: Job, workerId: string, signal: AbortSignal): Promise<void> {
    const { room, category, name, options } = job;
    const path = filledPath("/rooms/{room}/jobs", { room });
    await this.#persistently("PUT", path, { ...options, category, name, worker_id: workerId }, signal);
  }

  /** Send a request with a key, and repeat it while the server cannot be reached. */
  async #persistently<Data>(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<{ data: Data }> {
    const request = { method, path, body, key: newKey(), signal };
    return repeated(() => this.connection.once<Data>(request), {
      seconds: this.#connectSeconds,
      signal,
      isRetryable: (error) => isTransient(error) && !(this.#workerId === "" && this.#isTokenRefused(error)),
      onRetry: (error, pause) => this.#log("warning", `Registering: ${describe(error)}; trying again in ${pause.toFixed(1)} s`),
    });
  }

  /** Whether the server has refused the token for long, so that no request can succeed. */
  get #isRefused(): boolean {
    return this.#endsBy < Infinity;
  }

  /** Return whether the server refuses the token, and no function can return another one. */
  #isTokenRefused(error: unknown): boolean {
    return isUnauthorized(error) && !this.connection.hasTokenFunction;
  }

  /** Register a new worker, because the server does not know this one: its tasks are lost. */
  async #renew(workerId: string): Promise<void> {
    if (this.#workerId !== workerId || this.#left.signal.aborted) return;
    this.#renewing ??= this.#registerAgain().finally(() => (this.#renewing = undefined));
    await this.#renewing;
  }

  async #registerAgain(): Promise<void> {
    const former = this.#workerId;
    for (const task of [...this.#held.values()]) this.#lose(task, "lost");
    if (this.#stopping.signal.aborted) return; // it has no tasks, and serves no jobs
    this.#log("warning", `The server does not know worker ${former}; registering a new one`);
    const id = (this.#successor ??= await this.#create(this.#stopping.signal));
    await this.#registerJobs(id);
    // Last: as long as the jobs are not registered, heartbeats of the former worker repeat all this.
    this.#workerId = id;
    this.#successor = undefined;
    this.#unanswered = undefined;
    this.#log("warning", `Worker ${id} replaces worker ${former}`);
  }

  /** Register the jobs for a new worker; log those that the server refuses. One that stops serves no jobs. */
  async #registerJobs(workerId: string): Promise<void> {
    const { signal } = this.#stopping;
    let refusal: ProblemError | undefined;
    let count = 0;
    for (const [name, job] of this.#jobs) {
      try {
        await this.#register(job, workerId, signal);
        count += 1;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof WorkerNotFound) this.#successor = undefined;
        if (!(error instanceof ProblemError) || error instanceof WorkerNotFound || isTransient(error)) throw error;
        this.#log("error", `Job ${name} cannot be registered again: ${describe(error)}`);
        refusal = error;
      }
    }
    if (count === 0 && refusal !== undefined) throw refusal;
  }

  /** End a worker without a valid token: no request of it can succeed, and its tasks are lost to it. */
  #endRefused(error: unknown): void {
    if (this.#isRefused) return;
    this.#endsBy = now() + REFUSED_END_SECONDS;
    const reason = `The token of the worker was refused, with each response of ${RefusedToken.seconds} s: ${(error as Error).message}`;
    const detail = `${reason}. Pass a valid token, or a function that returns one for each request`;
    this.#refusal = new Unauthorized({ type: "/v1/problems/unauthorized", title: "Unauthorized", status: 401, detail });
    this.#log("error", `${reason}. Worker ${this.#workerId} ends, and its ${this.#held.size} task(s) are lost to it`);
    for (const task of [...this.#held.values()]) {
      task.stop("lost");
      this.#forget(task);
    }
    this.stop();
    this.#change.notify();
  }

  // Heartbeats

  async #sendHeartbeats(): Promise<void> {
    const backoff = new Backoff();
    while (!this.#left.signal.aborted) {
      let pause = this.#interval;
      try {
        await this.#beat();
        backoff.reset();
      } catch (error) {
        pause = Math.min(backoff.after(error), this.#interval);
        this.#log("warning", `Heartbeat: ${describe(error)}; trying again in ${pause.toFixed(1)} s`);
      }
      await this.#heartbeatDue.wait(pause);
    }
  }

  /** Send a heartbeat with the tasks that this worker holds, and apply the verdict on each. */
  async #beat(): Promise<void> {
    const workerId = this.#workerId;
    const named = this.#toName();
    const body = {
      tasks: named.map(({ id, attempt }) => ({ id, attempt })),
      ...(this.#heartbeats++ % HEARTBEATS_PER_INFO === 0 && { worker: this.#info }),
      ...(named.some((task) => task.hasOldToken) && { tokens: true }),
    };
    const path = filledPath("/workers/{id}", { id: workerId });
    const timeoutSeconds = Math.max(this.#interval, SHORTEST_INTERVAL_SECONDS);
    let answer: WorkerResponse;
    try {
      answer = (await this.connection.once<WorkerResponse>({ method: "PATCH", path, body, timeoutSeconds })).data;
    } catch (error) {
      if (!(error instanceof WorkerNotFound)) throw error;
      return this.#renew(workerId);
    }
    this.#interval = Math.max(answer.heartbeat_interval_seconds, 0.1);
    for (const [index, { id, verdict, token }] of (answer.tasks ?? []).entries()) {
      const task = named[index];
      if (task === undefined || task.id !== id) continue;
      if (verdict !== "continue") this.#lose(task, verdict === "cancel" ? "cancelled" : "lost");
      else if (token != null) task.renew(token);
    }
    if (answer.drain) this.#drain();
  }

  /** Return the held tasks; if there are too many for one heartbeat, others each time. */
  #toName(): RunningTask[] {
    const tasks = [...this.#held.values()].slice(0, MAX_NAMED_TASKS);
    if (tasks.length < this.#held.size) {
      for (const task of tasks) {
        this.#held.delete(keyOf(task));
        this.#held.set(keyOf(task), task);
      }
    }
    return tasks;
  }

  #drain(): void {
    if (!this.#stopping.signal.aborted) this.#log("info", `The server drains worker ${this.#workerId}`);
    this.stop();
  }

  /** Notice that a task was cancelled or is lost; not while its outcome is reported: that may have been applied. */
  #lose(task: RunningTask, reason: TaskStopped["reason"]): void {
    if (this.#held.get(keyOf(task)) !== task || this.#reporter.isReporting(task)) return;
    this.#log("info", `Task ${task.id} ${reason === "cancelled" ? "was cancelled" : "is no longer held by this worker"}`);
    task.stop(reason);
    this.#forget(task);
  }

  #forget(task: RunningTask): void {
    this.#reporter.drop(task);
    const index = this.#waiting.findIndex((one) => one.task === task);
    if (index >= 0) this.#waiting.splice(index, 1);
    this.#release(task);
  }

  #release(task: RunningTask): void {
    if (this.#held.get(keyOf(task)) === task) this.#held.delete(keyOf(task));
    this.#change.notify();
  }

  // Claims

  async #claim(): Promise<void> {
    const backoff = new Backoff();
    let refusals = 0;
    while (!this.#stopping.signal.aborted) {
      const { limit, mayWait } = await this.#room();
      if (limit === 0) continue;
      const began = now();
      try {
        await this.#claimOnce(limit, mayWait);
        backoff.reset();
        refusals = 0;
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        if (statusOf(error) === 403) {
          this.#log("error", `Claiming: ${describe(error)}; the token may not serve these jobs, so the worker leaves`);
          this.#refusal = error;
          return this.stop();
        }
        // A proxy that cuts long-polls fails slowly: that error needs no growing pauses.
        if (now() - began > LONG_POLL_SECONDS) backoff.reset();
        refusals = isUnauthorized(error) ? refusals + 1 : 0;
        const pause = Math.max(backoff.after(error), refusals > 1 ? UNAUTHORIZED_SECONDS : 0);
        this.#log("warning", `Claiming: ${describe(error)}; trying again in ${pause.toFixed(1)} s`);
        await sleep(pause, this.#stopping.signal).catch(() => undefined);
      }
    }
  }

  /** Wait until more tasks are needed; return how many, and whether the server may wait for the first one. */
  async #room(): Promise<{ limit: number; mayWait: boolean }> {
    while (!this.#stopping.signal.aborted) {
      const free = this.#waiting.reduce((rest, { task }) => rest - task.cost, this.#concurrency - this.#used);
      const limit = this.#lookahead.claimable(free, this.#waiting.length);
      if (limit > 0 && !this.#reporter.isFull) return { limit, mayWait: free > 0 };
      const stuck = this.#waiting.length > 0 ? this.#lookahead.secondsUntilStuck(now()) : Infinity;
      if (stuck <= 0) {
        this.#lookahead.handedBack();
        await this.#releaseWaiting();
        continue;
      }
      await this.#change.wait(limit > 0 ? CHECK_SECONDS : Math.max(stuck, CHECK_SECONDS));
    }
    return { limit: 0, mayWait: false };
  }

  async #claimOnce(limit: number, mayWait: boolean): Promise<void> {
    const workerId = this.#workerId;
    // A claim whose response was lost is repeated: it gets the same tasks.
    const claim = this.#unanswered ?? { claim_id: newKey(), max: limit };
    this.#unanswered = claim;
    const body = { worker_id: workerId, ...claim, tokens: true };
    const [sentAt, began] = [Date.now() / 1000, now()];
    this.#poll = new AbortController();
    const request = { method: "POST", path: "/tasks/claim", body, signal: this.#poll.signal };
    let wait = mayWait ? POLL_SECONDS : 0;
    const answer = await this.connection.once<TaskClaimResponse>({ ...request, wait }).catch(async (error: unknown) => {
      if (error instanceof WorkerNotFound) return void (await this.#renew(workerId));
      if (statusOf(error) !== 503 || wait === 0) throw error;
      wait = 0; // too many clients wait
      return this.connection.once<TaskClaimResponse>(request);
    });
    if (answer === undefined) return;
    this.#unanswered = undefined;
    const { data, headers } = answer;
    const applied = appliedWait(headers);
    const elapsed = Date.now() / 1000 - sentAt;
    // The monotonic clock stands still while the machine is suspended.
    const isLate = elapsed > applied + SURE_SECONDS || elapsed - (now() - began) > SURE_SECONDS;
    this.#accept(data.tasks ?? [], isLate ? sentAt : sentAt + elapsed, claim.max);
    if (data.reason === "draining") this.#drain();
    else if ((data.tasks ?? []).length === 0 && mayWait) await this.#pause(applied, now() - began);
  }

  #accept(tasks: TaskResponse[], claimedAt: number, limit: number): void {
    for (const response of tasks) {
      const task = new RunningTask(this.connection, response, this.#workerId, (one) => this.#reporter.addLive(one));
      this.#held.set(keyOf(task), task);
      this.#waiting.push({ task, claimedAt });
    }
    this.#lookahead.claimed(tasks.length, now(), tasks.length >= limit);
    this.#startWaiting();
  }

  async #pause(applied: number, waited: number): Promise<void> {
    const pause = applied <= 0 ? PAUSE_SECONDS : waited < applied / 2 ? EARLY_PAUSE_SECONDS : 0;
    if (pause > 0) await sleep(pause, this.#stopping.signal).catch(() => undefined);
  }

  // Runs

  #startWaiting(): void {
    if (this.#stopping.signal.aborted) return;
    for (let next = this.#waiting[0]; next !== undefined && this.#fits(next.task); next = this.#waiting[0]) {
      this.#waiting.shift();
      this.#running += 1;
      this.#used += next.task.cost;
      this.#lookahead.began(now());
      void this.#run(next);
    }
  }

  /** Return whether a task fits into the free slots; one alone always does. */
  #fits({ cost }: RunningTask): boolean {
    return this.#running === 0 || cost <= this.#concurrency - this.#used;
  }

  async #run({ task, claimedAt }: Waiting): Promise<void> {
    try {
      const isSure = Math.abs(Date.now() / 1000 - claimedAt) <= SURE_SECONDS;
      if (!isSure) await this.#confirm(task);
      if (task.signal.aborted) return;
      if (isSure || !this.#stopping.signal.aborted) await this.#execute(task);
      else await this.#putBack([task]);
    } finally {
      this.#running -= 1;
      this.#used -= task.cost;
      this.#startWaiting();
      this.#change.notify();
    }
  }

  async #execute(task: RunningTask): Promise<void> {
    const entry = this.#reporter.begin(task);
    const began = now();
    let outcome = await this.#outcomeOf(task);
    this.#lookahead.ended(now() - began);
    this.#uploading.add(task);
    if (outcome.content !== undefined && !task.signal.aborted) outcome = await this.#upload(task, outcome, outcome.content);
    this.#uploading.delete(task);
    this.#reporter.end(entry, outcome, this.#waiting.length > 0);
  }

  async #outcomeOf(task: RunningTask): Promise<Outcome> {
    try {
      const job = this.#jobs.get(task.jobName);
      if (job === undefined) return refusedOutcome(`This worker does not serve the job ${task.jobName}`);
      const { run } = job;
      const payload = decode(await this.#payloadOf(task)) as Payload;
      return completed(await run(payload, task));
    } catch (error) {
      if (error instanceof UnusableResult) return refusedOutcome(error.message, "predecessor-result-invalid");
      if (!task.signal.aborted) this.#log("info", `Task ${task.id} failed: ${describe(error)}`);
      return failed(error);
    }
  }

  async #payloadOf(task: RunningTask): Promise<Payload> {
    const { payload } = task.task;
    const read = () => withResults(this.connection, payload, task.id);
    try {
      return await repeated(read, { seconds: REPORT_SECONDS, signal: task.signal, isRetryable: isTransient });
    } catch (error) {
      if (!(error instanceof ProblemError || (error instanceof JoblibError && error.name === "JoblibError"))) throw error;
      this.#log("warning", `The results are not for task ${task.id}: ${describe(error)}`);
      return payload;
    }
  }

  /** Upload the content of a result; return what to report: a failure if it was not stored. */
  async #upload(task: RunningTask, outcome: Outcome, content: Content): Promise<Outcome> {
    const { data, contentType, filename } = content;
    const size = data instanceof Blob ? data.size : data.byteLength;
    const request = {
      method: "PUT",
      path: filledPath("/tasks/{id}/result", { id: task.id }),
      query: { attempt: task.attempt, filename },
      content: data,
      contentType,
      signal: task.signal,
      timeoutSeconds: 60 + size / 50_000,
    };
    const began = now();
    const isTooLarge = (error: unknown) => error instanceof UnexpectedResponse && error.status === 413 && now() - began > TOO_LARGE_SECONDS;
    const isRetryable = (error: unknown) => isTransient(error) && !(error instanceof ResultStoreFull) && !isTooLarge(error);
    try {
      await repeated(() => this.connection.once(request), { seconds: REPORT_SECONDS, signal: task.signal, isRetryable });
      return outcome;
    } catch (error) {
      if (task.signal.aborted || isGone(error)) return outcome;
      this.#log("warning", `The result of task ${task.id} was not stored: ${describe(error)}`);
      return refusedOutcome(`The result was not stored: ${describe(error)}`);
    }
  }

  /**
   * Ask the server whether this worker still holds a task that has waited here, perhaps while the machine was suspended.
   * It goes on until the server has answered, or the worker stops.
   */
  async #confirm(task: RunningTask): Promise<void> {
    const backoff = new Backoff();
    while (!task.signal.aborted && !this.#stopping.signal.aborted) {
      try {
        return await this.#beat();
      } catch (error) {
        await sleep(backoff.after(error), this.#stopping.signal).catch(() => undefined);
      }
    }
  }

  // The end

  /** Claim no more. The server is asked first to give out no tasks: a task of the open claim would be lost. */
  async #stopClaiming(claims: Promise<void>): Promise<void> {
    if (this.#isRefused) {
      this.#poll?.abort(new JoblibError("The worker ends"));
      return claims;
    }
    const paths = [...this.#jobs.keys()].map((name) => filledPath("/workers/{id}/jobs/{name}", { id: this.#workerId, name }));
    const began = now();
    await Promise.all(paths.map((path) => this.#briefly("DELETE", path)));
    const grace = LAST_RESPONSE_SECONDS + now() - began;
    const timer = after(grace, () => this.#poll?.abort(new JoblibError("The worker stops")));
    await claims;
    clearTimeout(timer);
    await this.#claimUnanswered();
    await this.#releaseWaiting();
  }

  /** Repeat a claim whose response was lost: the tasks that the server gave it would fail when this worker leaves. */
  async #claimUnanswered(): Promise<void> {
    if (this.#unanswered === undefined) return;
    const body = { worker_id: this.#workerId, ...this.#unanswered };
    const claim = () => this.connection.once<TaskClaimResponse>({ method: "POST", path: "/tasks/claim", body, timeoutSeconds: LEAVE_SECONDS });
    try {
      const { data } = await repeated(claim, { seconds: LEAVE_SECONDS, isRetryable: isTransient });
      this.#accept(data.tasks ?? [], 0, this.#unanswered.max);
    } catch (error) {
      if (error instanceof WorkerNotFound) return;
      this.#hasKept = true;
      this.#log("warning", `The last claim has no response: ${describe(error)}`);
    }
  }

  /** Put the tasks that wait here back into their queues. */
  async #releaseWaiting(): Promise<void> {
    await this.#putBack(this.#waiting.splice(0).map((one) => one.task));
  }

  /** Put tasks that did not start back into their queues, and hold them no longer. */
  async #putBack(tasks: RunningTask[]): Promise<void> {
    const isDone = await this.#giveBack(tasks);
    this.#hasKept ||= !isDone && this.#stopping.signal.aborted;
    for (const task of tasks) this.#release(task);
  }

  /** Put tasks that run back into their queues; uploads of results have a few seconds to end, before their tasks return too. */
  async #requeue(): Promise<void> {
    await this.#return((task) => !this.#uploading.has(task));
    const deadline = now() + LEAVE_SECONDS;
    while (this.#uploading.size > 0 && now() < deadline) await this.#change.wait(deadline - now());
    await this.#return(() => true);
  }

  /** Put tasks whose outcomes are not reported back into their queues. They are lost first: a task is returned or reported, never both. */
  async #return(isMeant: (task: RunningTask) => boolean): Promise<void> {
    const tasks = [...this.#held.values()].filter((task) => isMeant(task) && !this.#reporter.isReporting(task));
    for (const task of tasks) this.#lose(task, "released");
    await this.#giveBack(tasks);
  }

  /** Put tasks back into their queues; return whether the server has done it. */
  async #giveBack(tasks: RunningTask[]): Promise<boolean> {
    if (tasks.length === 0) return true;
    if (tasks.length > MAX_RELEASED_TASKS) {
      const isDone = await this.#giveBack(tasks.slice(0, MAX_RELEASED_TASKS));
      return (await this.#giveBack(tasks.slice(MAX_RELEASED_TASKS))) && isDone;
    }
    const reports = tasks.map(({ id, attempt }) => ({ id, attempt, status: "pending" }));
    const content = stringifyJson({ worker_id: this.#workerId, reports });
    const send = () => this.connection.once({ method: "POST", path: "/tasks/report", content, headers: { Prefer: "return=minimal" }, timeoutSeconds: LEAVE_SECONDS });
    try {
      await repeated(send, { seconds: LEAVE_SECONDS, isRetryable: isTransient });
    } catch (error) {
      this.#log("warning", `${tasks.length} task(s) were not released: ${describe(error)}`);
      return false;
    }
    this.#log("info", `Released ${tasks.length} task(s)`);
    return true;
  }

  /** Wait until no task runs and each is reported; return whether that happened in time. */
  async #idle(seconds = Infinity): Promise<boolean> {
    const deadline = now() + seconds;
    while (this.#running > 0 || !this.#reporter.isIdle) {
      const left = Math.min(deadline, this.#endsBy) - now();
      if (left <= 0) return false;
      await this.#change.wait(left);
    }
    return true;
  }

  async #leave(): Promise<void> {
    // Tasks of a worker that leaves are lost. Those that did not start return to their queues if it just stays away.
    if (this.#hasKept || this.#isRefused) return;
    await this.#briefly("DELETE", filledPath("/workers/{id}", { id: this.#successor ?? this.#workerId }));
  }

  /** Send a request a few times; what is not applied the server does itself, once heartbeats stay away. */
  async #briefly(method: string, path: string): Promise<void> {
    const send = () => this.connection.once({ method, path, timeoutSeconds: LEAVE_SECONDS });
    await repeated(send, { seconds: LEAVE_SECONDS, isRetryable: isTransient }).catch((error: unknown) => {
      if (statusOf(error) !== 404) this.#log("warning", `${method} ${path}: ${describe(error)}`);
    });
  }
}

/** Wakes those that wait for a change. */
class Change {
  #waiters = new Set<() => void>();

  notify(): void {
    for (const wake of this.#waiters) wake();
  }

  wait(seconds: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = Number.isFinite(seconds) ? after(seconds, () => wake()) : undefined;
      const wake = () => {
        clearTimeout(timer);
        this.#waiters.delete(wake);
        resolve();
      };
      this.#waiters.add(wake);
    });
  }
}

function until(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

function keyOf(task: RunningTask): string {
  return `${task.id} ${task.attempt}`;
}

function nodeProcess(): NodeProcess | undefined {
  return (globalThis as { process?: NodeProcess }).process;
}

function handleSignals(stop: () => void): () => void {
  const process = nodeProcess();
  if (process === undefined) return () => undefined;
  let isFirst = true;
  const handlers = SIGNALS.map(([name, number]) => {
    const handle = () => {
      if (!isFirst) process.exit(128 + number);
      isFirst = false;
      stop();
    };
    process.on(name, handle);
    return [name, handle] as const;
  });
  return () => {
    for (const [name, handle] of handlers) process.off(name, handle);
  };
}

/** Return a log that does not throw: a worker runs on without the user's one. */
function guarded(log: Log): Log {
  return (level, message) => {
    try {
      const returned: unknown = log(level, message);
      if (returned instanceof Promise) returned.catch(() => undefined);
    } catch {
      logToConsole(level, message);
    }
  };
}

function logToConsole(level: string, message: string): void {
  if (level !== "debug") console.error(`${new Date().toISOString()} ${level.toUpperCase()} ${message}`);
}
