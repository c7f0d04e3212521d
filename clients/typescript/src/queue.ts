/** The client: submit tasks, wait for their ends, read their results, follow and cancel them. */
import {
  appliedWait,
  Connection,
  filledPath,
  newKey,
  problemOf,
  type Answer,
  type AnswerOf,
  type CallOptions,
  type ConnectionOptions,
  type OperationOptions,
  type Request,
} from "./connection.js";
import { JoblibError, ProblemError, TaskCancelled, TaskFailed, WaitTimeout } from "./errors.js";
import type { GroupResult, GroupStream, RoomStream, SentEvent, TaskStream } from "./events.js";
import { parseJson } from "./json.js";
import { JobNotFound, ResultExpired } from "./problems.js";
import type {
  BatchResponse,
  GroupResponse,
  JobSummary,
  NumberedLine,
  TaskHistory,
  TaskResponse,
  TaskSubmitRequest,
  TaskToSubmit,
} from "./rest.js";
import { Backoff, isRepeatable, isUnreachable, now, sleep } from "./retry.js";
import { follow, type FollowOptions } from "./streams.js";
import { decode, decodeContent, toJson } from "./values.js";

export interface QueueOptions extends ConnectionOptions {
  /** The room of tasks that name none. Without it, it is the room of the job, or `default` for a job of `@global`. */
  room?: string;
}

/** The payload of a task: JSON, in which arrays, bytes and BigInts may be. */
export type Payload = Record<string, unknown>;

/** The options of a submit, by their names in the REST API, and the `room` of the task. */
export type TaskOptions = Omit<TaskSubmitRequest, "payload"> & {
  room?: string;
  /** The room in which a short name of a job is looked up; by default that of the task. */
  jobRoom?: string;
};

export type SubmitOptions = TaskOptions & KeyOptions;

/** A task to submit, for `submitMany`. `job` is a full name, `category:name` or `name`. */
export type NewTask = TaskOptions & { job: string; payload?: Payload };

export interface KeyOptions extends CallOptions {
  /** Two calls with the same key and arguments submit once. By default each call has a new key. */
  idempotencyKey?: string;
}

export interface WaitOptions extends CallOptions {
  /** Reject with `WaitTimeout` after this number of seconds. By default it waits for as long as it takes. */
  timeoutSeconds?: number;
}

export interface GroupOptions extends KeyOptions {
  room?: string;
  name?: string;
  /** The task to submit when the group ends; `job` is a full name. */
  on_end?: { job: string; payload?: Payload; when?: "ended" | "completed" };
  expires_in_seconds?: number;
}

/** A result as it is stored. */
export interface StoredContent {
  content: Uint8Array<ArrayBuffer>;
  contentType: string;
}

const WAIT_SECONDS = 20;
const POLL_PAUSE_SECONDS = 0.25;
const MAX_BATCH = 1000;
// Proxies often refuse bodies of more than a megabyte.
const CHUNK_CHARACTERS = 1_000_000;
const NAME_SECONDS = 60;
const MAX_PAGE = 500;
const PARALLEL_WAITS = 4;
const LAST_RESPONSE_SECONDS = 1;
const POLL_MARGIN_SECONDS = 10;
const ENDED = new Set(["completed", "failed", "cancelled"]);
const RESERVED = new Set(["@global", "@internal"]);

/** Return whether a task has ended. */
export function hasEnded(task: Pick<TaskResponse, "status">): boolean {
  return ENDED.has(task.status);
}

/** One user's access to a queue. */
export class Queue {
  /** Any operation of the REST API, with types: `queue.connection.call("get", "/v1/joblib/workers")`. */
  readonly connection: Connection;
  readonly room: string | undefined;
  readonly #names = new Map<string, { name: string; until: number }>();
  readonly #parent: string | undefined;

  constructor(options: QueueOptions | { connection: Connection; room?: string; parent?: string } = {}) {
    this.connection = "connection" in options ? options.connection : new Connection(options);
    this.room = options.room;
    this.#parent = "parent" in options ? options.parent : undefined;
  }

  /** Submit a task of a job: `room:category:name`, or `category:name` or `name`, which are looked up. */
  async submit(job: string, payload: Payload = {}, options: SubmitOptions = {}): Promise<TaskHandle> {
    const { idempotencyKey: key = newKey(), signal, ...taskOptions } = options;
    const { room_id, job_name: name, ...body } = await this.#taskOf({ ...taskOptions, job, payload }, signal);
    const request = { path: { room_id, name }, body, key, ...(signal && { signal }) };
    try {
      const task = await this.connection.call("post", "/v1/joblib/rooms/{room_id}/tasks/{name}", request);
      return new TaskHandle(this, task.id, task);
    } catch (error) {
      if (error instanceof JobNotFound) this.#names.clear();
      throw error;
    }
  }

  /** Submit a task, wait for its end, and return its result. */
  async run(job: string, payload: Payload = {}, options: SubmitOptions & WaitOptions = {}): Promise<unknown> {
    const { timeoutSeconds, ...submitOptions } = options;
    const { signal } = options;
    const task = await this.submit(job, payload, submitOptions);
    return task.result({ ...(signal && { signal }), ...(timeoutSeconds !== undefined && { timeoutSeconds }) });
  }

  /**
   * Submit tasks in order, up to 1,000 and about a megabyte in one request; return for each its handle, or its
   * problem. With `atomic`, all are submitted or none, in one request.
   */
  async submitMany(
    tasks: Iterable<NewTask>,
    options: KeyOptions & { atomic?: boolean } = {},
  ): Promise<(TaskHandle | ProblemError)[]> {
    const { idempotencyKey: key = newKey(), signal, atomic = false } = options;
    const bodies: string[] = [];
    for (const task of tasks) bodies.push(toJson(await this.#taskOf(task, signal), `tasks.${bodies.length}`));
    const results: (TaskHandle | ProblemError)[] = [];
    const chunks = atomic && bodies.length > 0 ? [bodies] : [...chunksOf(bodies)];
    for (const [number, chunk] of chunks.entries()) {
      const content = `{"tasks":[${chunk.join(",")}]${atomic ? ',"atomic":true' : ""}}`;
      const { results: items } = await this.#submitBatch(content, `${key}.${number}`, signal);
      results.push(...items.map((item) => this.#resultOf(item)));
    }
    return results;
  }

  /** Submit tasks as a group, in one transaction, and seal it: at most 1,000 tasks. */
  async submitGroup(tasks: Iterable<NewTask>, options: GroupOptions = {}): Promise<GroupHandle> {
    const { idempotencyKey: key = newKey(), signal, room = this.room, ...group } = options;
    const bodies: TaskToSubmit[] = [];
    for (const task of tasks) bodies.push(await this.#taskOf({ ...(room !== undefined && { room }), ...task }, signal));
    const owner = room ?? bodies[0]?.room_id;
    if (owner === undefined) throw new JoblibError("A group needs at least one task");
    const content = toJson({ tasks: bodies, group: { ...group, room: owner } }, "group");
    const { group: id } = await this.#submitBatch(content, key, signal);
    return new GroupHandle(this, String(id));
  }

  /** Return the task with an id. It is not read. */
  task(id: string): TaskHandle {
    return new TaskHandle(this, id);
  }

  /** Return the group with an id. It is not read. */
  group(id: string): GroupHandle {
    return new GroupHandle(this, id);
  }

  /** Return the newest tasks of a room, at most `limit` (50). */
  async tasks(options: CallOptions & { room?: string; limit?: number; status?: TaskResponse["status"]; tag?: string } = {}): Promise<TaskResponse[]> {
    const { room = this.room ?? "default", signal, ...query } = options;
    const path = { path: { room_id: room }, query: query as NonNullable<OperationOptions<"get", "/v1/joblib/rooms/{room_id}/tasks">["query"]> };
    return (await this.connection.call("get", "/v1/joblib/rooms/{room_id}/tasks", { ...path, signal })).items;
  }

  /** Return all jobs that a room sees. */
  async jobs(options: CallOptions & { room?: string } = {}): Promise<JobSummary[]> {
    const { room = this.room ?? "default", signal } = options;
    const jobs: JobSummary[] = [];
    for (;;) {
      const query = { limit: MAX_PAGE, offset: jobs.length };
      const page = await this.connection.call("get", "/v1/joblib/rooms/{room_id}/jobs", { path: { room_id: room }, query, signal });
      jobs.push(...page.items);
      if (page.items.length === 0 || jobs.length >= page.total) return jobs;
    }
  }

  /** Return a task as it is now. */
  async read(taskId: string, options: CallOptions = {}): Promise<TaskResponse> {
    return this.connection.call("get", "/v1/joblib/tasks/{task_id}", { path: { task_id: taskId }, ...options });
  }

  /** Return a task once it has ended; go on while the server restarts. */
  async wait(taskId: string, options: WaitOptions = {}): Promise<TaskResponse> {
    const path = filledPath("/tasks/{id}", { id: taskId });
    return this.#waitFor<TaskResponse>(path, hasEnded, `Task ${taskId}`, options);
  }

  /** Return tasks once all have ended, in their order. */
  async waitAll(taskIds: Iterable<string>, options: WaitOptions = {}): Promise<TaskResponse[]> {
    const ids = [...taskIds];
    const tasks: TaskResponse[] = [];
    let next = 0;
    const { signal } = options;
    const deadline = now() + (options.timeoutSeconds ?? Infinity);
    const waits = new AbortController();
    const waitOne = async (): Promise<void> => {
      for (let index = next++; index < ids.length; index = next++) {
        const left = Number.isFinite(deadline) ? { timeoutSeconds: Math.max(0, deadline - now()) } : {};
        tasks[index] = await this.wait(ids[index]!, { ...left, signal: waits.signal });
      }
    };
    const onAbort = () => waits.abort(signal!.reason);
    signal?.throwIfAborted();
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      await Promise.all(Array.from({ length: PARALLEL_WAITS }, waitOne));
    } finally {
      signal?.removeEventListener("abort", onAbort);
      waits.abort(); // one that failed ends the others
    }
    return tasks;
  }

  /** Wait for the end of a task, and return its result. Rejects with `TaskFailed` or `TaskCancelled` without one. */
  async result(taskId: string, options: WaitOptions = {}): Promise<unknown> {
    return this.resultOf(await this.wait(taskId, options), options);
  }

  /** Return the result of a task that has ended: arrays as `NdArray`, bytes as `Uint8Array`. */
  async resultOf(task: TaskResponse, options: CallOptions = {}): Promise<unknown> {
    if (task.status === "cancelled") throw new TaskCancelled(task);
    if (task.status !== "completed") throw new TaskFailed(task);
    if (task.stored_result == null && task.result !== null) return decode(task.result);
    const { content, contentType } = await this.readResult(task.id, options);
    return decodeContent(content, contentType);
  }

  /** Return the bytes of a result. Rejects with `ResultNotFound` or `ResultExpired`. */
  async readResult(taskId: string, options: CallOptions = {}): Promise<StoredContent> {
    const request: Request = { method: "GET", path: filledPath("/tasks/{id}/result", { id: taskId }), ...options };
    const { data, headers } = await this.connection.repeat((sent) => this.connection.bytes(sent), request);
    return { content: data, contentType: headers.get("Content-Type") ?? "" };
  }

  /** Open the result of a task as a response, to read its body in pieces, or as a blob for an image. */
  async openResult(taskId: string, options: CallOptions & { headers?: Record<string, string> } = {}): Promise<Response> {
    const request: Request = { method: "GET", path: filledPath("/tasks/{id}/result", { id: taskId }), ...options };
    return this.connection.repeat((sent) => this.connection.open(sent), request);
  }

  /** Cancel a task that has not ended; with `tree`, all tasks below it too. */
  async cancel(taskId: string, options: KeyOptions & { tree?: boolean } = {}): Promise<TaskResponse> {
    const { idempotencyKey: key = newKey(), tree, signal } = options;
    const body = { status: "cancelled" as const, ...(tree && { tree }) };
    return this.connection.call("patch", "/v1/joblib/tasks/{task_id}", { path: { task_id: taskId }, body, key, signal });
  }

  /** Return every change of a task's status, and its attempts. */
  async history(taskId: string, options: CallOptions = {}): Promise<TaskHistory> {
    return this.connection.call("get", "/v1/joblib/tasks/{task_id}/history", { path: { task_id: taskId }, ...options });
  }

  /** Return why a task has its status, most important reason first. */
  async explain(taskId: string, options: CallOptions = {}): Promise<AnswerOf<"get", "/v1/joblib/tasks/{task_id}/explain">> {
    return this.connection.call("get", "/v1/joblib/tasks/{task_id}/explain", { path: { task_id: taskId }, ...options });
  }

  /** Yield the lines of an attempt's log, by default of the current or last one. */
  async *logs(taskId: string, options: CallOptions & { attempt?: number } = {}): AsyncGenerator<NumberedLine, void, undefined> {
    const { signal } = options;
    let { attempt } = options;
    for (let after: number | null = 0; after !== null; ) {
      const query: { after: number; attempt?: number } = { after, ...(attempt !== undefined && { attempt }) };
      const part: AnswerOf<"get", "/v1/joblib/tasks/{task_id}/log"> = await this.connection.call("get", "/v1/joblib/tasks/{task_id}/log", { path: { task_id: taskId }, query, signal });
      yield* part.lines;
      attempt = part.attempt;
      after = part.next;
    }
  }

  /** Yield a snapshot of a task, then its events until its end, also after lost connections. */
  follow(taskId: string, options: FollowOptions = {}): AsyncGenerator<SentEvent<TaskStream>, void, undefined> {
    return follow<TaskStream>(this.connection, filledPath("/tasks/{id}/events", { id: taskId }), options);
  }

  /** Yield a snapshot of a room's tasks, then every event of them, until the signal is aborted. */
  followRoom(room: string, options: FollowOptions = {}): AsyncGenerator<SentEvent<RoomStream>, void, undefined> {
    return follow<RoomStream>(this.connection, filledPath("/rooms/{room}/events", { room }), options);
  }

  /** Yield a group, then how far it is whenever that changes, until its end. */
  followGroup(groupId: string, options: FollowOptions = {}): AsyncGenerator<SentEvent<GroupStream>, void, undefined> {
    return follow<GroupStream>(this.connection, filledPath("/groups/{id}/events", { id: groupId }), options);
  }

  /** Create a group, to which tasks are submitted with `group`. Seal it after the last one. */
  async createGroup(options: GroupOptions = {}): Promise<GroupHandle> {
    const { idempotencyKey: key = newKey(), signal, room = this.room ?? "default", ...body } = options;
    const { data } = await this.connection.json<GroupResponse>({ method: "POST", path: "/groups", body: { ...body, room }, key, signal });
    return new GroupHandle(this, data.id, data);
  }

  /** Return a group once it has ended. */
  async waitForGroup(groupId: string, options: WaitOptions = {}): Promise<GroupResponse> {
    const path = filledPath("/groups/{id}", { id: groupId });
    return this.#waitFor<GroupResponse>(path, (group) => group.ended_at !== null, `Group ${groupId}`, options);
  }

  /** Yield a line for each task of a group, in the order of submission; `result` is decoded. */
  async *groupResults(groupId: string, options: CallOptions = {}): AsyncGenerator<GroupResult, void, undefined> {
    const path = filledPath("/groups/{id}/results", { id: groupId });
    const request: Request = { method: "GET", path, timeoutSeconds: 300, ...options };
    const { data } = await this.connection.repeat((sent) => this.connection.bytes(sent), request);
    for (const line of new TextDecoder().decode(data).split("\n")) {
      if (line.trim() === "") continue;
      const item = parseJson(line) as GroupResult;
      yield { ...item, result: decode(item.result) };
    }
  }

  /** Return the body of a submit in a batch: the full name of the job, the room and the options. */
  async #taskOf(task: NewTask, signal?: AbortSignal): Promise<TaskToSubmit> {
    const { job, payload = {}, room = this.room, jobRoom, ...options } = task;
    const job_name = await this.#fullName(job, jobRoom ?? room ?? "default", signal);
    const owner = job_name.split(":", 1)[0]!;
    const room_id = room ?? (RESERVED.has(owner) ? "default" : owner);
    const parent = this.#parent !== undefined && room_id === this.room ? { parent: this.#parent } : {};
    return { payload, ...parent, ...options, room_id, job_name };
  }

  async #fullName(job: string, room: string, signal?: AbortSignal): Promise<string> {
    const parts = job.split(":");
    if (parts.length > 2) return job;
    const known = this.#names.get(`${room}/${job}`);
    if (known !== undefined && known.until > now()) return known.name;
    const name = nameIn(await this.jobs({ room, ...(signal && { signal }) }), job, room);
    this.#names.set(`${room}/${job}`, { name, until: now() + NAME_SECONDS });
    return name;
  }

  async #submitBatch(content: string, key: string, signal?: AbortSignal): Promise<BatchResponse> {
    const request: Request = { method: "POST", path: "/tasks/submit", content, key, headers: { Prefer: "return=minimal" }, signal };
    // The server was too busy for some of them: the repeat gets the results of the others.
    let refused: BatchResponse | undefined;
    const send = async (sent: Request): Promise<BatchResponse> => {
      refused = undefined;
      const { data } = await this.connection.once<BatchResponse>(sent);
      const problems = data.results.filter((item) => item.problem != null).map((item) => problemOf(item.status, { ...item.problem }));
      const busy = problems.find(isRepeatable);
      if (busy === undefined) return data;
      refused = data;
      throw busy;
    };
    try {
      return await this.connection.repeat(send, request);
    } catch (error) {
      if (refused !== undefined && error instanceof ProblemError) return refused;
      throw error;
    }
  }

  #resultOf(item: BatchResponse["results"][number]): TaskHandle | ProblemError {
    return item.problem == null ? new TaskHandle(this, String(item.id)) : problemOf(item.status, { ...item.problem });
  }

  async #waitFor<State>(path: string, isOver: (state: State) => boolean, what: string, options: WaitOptions): Promise<State> {
    const { signal, timeoutSeconds = Infinity } = options;
    const deadline = now() + timeoutSeconds;
    const backoff = new Backoff();
    for (;;) {
      const began = now();
      const wait = Math.round(Math.max(0, Math.min(deadline - began, WAIT_SECONDS)));
      // A server that does not respond must not make it much longer.
      const isLast = deadline - began < WAIT_SECONDS + POLL_MARGIN_SECONDS;
      const limit = isLast ? { timeoutSeconds: Math.max(0, deadline - began) + LAST_RESPONSE_SECONDS } : {};
      let pause: number;
      try {
        const { data, headers }: Answer<State> = await this.connection.once({ method: "GET", path, wait, signal, ...limit });
        if (isOver(data)) return data;
        backoff.reset();
        const applied = appliedWait(headers);
        pause = applied > 0 && now() - began > applied / 2 ? 0 : POLL_PAUSE_SECONDS;
      } catch (error) {
        if (!isUnreachable(error)) throw error;
        pause = backoff.after(error);
      }
      const left = deadline - now();
      if (left <= 0) throw new WaitTimeout(`${what} has not ended after ${timeoutSeconds} s`);
      await sleep(Math.min(pause, left), signal);
    }
  }
}

function nameIn(jobs: JobSummary[], job: string, room: string): string {
  const [name, category] = job.split(":").reverse();
  for (const owner of [room, "@global", "@internal"]) {
    const seen = jobs.filter((one) => one.full_name.startsWith(`${owner}:`) && one.name === name && (category === undefined || one.category === category));
    if (seen.length === 1) return seen[0]!.full_name;
    if (seen.length > 1) {
      const names = seen.map((one) => one.full_name).join(", ");
      throw new JoblibError(`The name ${job} is ambiguous: room ${room} sees ${names}. Pass the full name`);
    }
  }
  const names = jobs.slice(0, 10).map((one) => one.full_name).join(", ") || "none";
  const detail = `Room ${room} sees no job ${job}. The jobs that it sees: ${names}. Check the name, or start a worker that serves it`;
  throw problemOf(404, { type: "/v1/problems/job-not-found", title: "Not Found", detail });
}

function* chunksOf(bodies: string[]): Generator<string[], void, undefined> {
  let chunk: string[] = [];
  let size = 0;
  for (const body of bodies) {
    if (chunk.length === MAX_BATCH || (chunk.length > 0 && size + body.length > CHUNK_CHARACTERS)) {
      yield chunk;
      [chunk, size] = [[], 0];
    }
    chunk.push(body);
    size += body.length + 1;
  }
  if (chunk.length > 0) yield chunk;
}

/** A submitted task. */
export class TaskHandle {
  constructor(
    readonly queue: Queue,
    readonly id: string,
    /** The task as its submit returned it; undefined for one of `submitMany`, or of an id. */
    readonly submitted?: TaskResponse,
  ) {}

  /** Return the id: a handle in a payload or a list of `after` is that of its task. */
  toJSON(): string {
    return this.id;
  }

  read(options?: CallOptions): Promise<TaskResponse> {
    return this.queue.read(this.id, options);
  }

  wait(options?: WaitOptions): Promise<TaskResponse> {
    return this.queue.wait(this.id, options);
  }

  result(options?: WaitOptions): Promise<unknown> {
    return this.queue.result(this.id, options);
  }

  cancel(options?: KeyOptions & { tree?: boolean }): Promise<TaskResponse> {
    return this.queue.cancel(this.id, options);
  }

  follow(options?: FollowOptions): AsyncGenerator<SentEvent<TaskStream>, void, undefined> {
    return this.queue.follow(this.id, options);
  }

  history(options?: CallOptions): Promise<TaskHistory> {
    return this.queue.history(this.id, options);
  }

  logs(options?: CallOptions & { attempt?: number }): AsyncGenerator<NumberedLine, void, undefined> {
    return this.queue.logs(this.id, options);
  }

  explain(options?: CallOptions): Promise<AnswerOf<"get", "/v1/joblib/tasks/{task_id}/explain">> {
    return this.queue.explain(this.id, options);
  }
}

/** A group of tasks. */
export class GroupHandle {
  constructor(
    readonly queue: Queue,
    readonly id: string,
    readonly created?: GroupResponse,
  ) {}

  toJSON(): string {
    return this.id;
  }

  read(options: CallOptions = {}): Promise<GroupResponse> {
    return this.queue.connection.call("get", "/v1/joblib/groups/{group_id}", { path: { group_id: this.id }, ...options });
  }

  /** Add no more tasks: the group ends when all its tasks have ended. */
  seal(options: KeyOptions = {}): Promise<GroupResponse> {
    const { idempotencyKey: key = newKey(), signal } = options;
    const path = { group_id: this.id };
    return this.queue.connection.call("patch", "/v1/joblib/groups/{group_id}", { path, body: { sealed: true }, key, signal });
  }

  wait(options?: WaitOptions): Promise<GroupResponse> {
    return this.queue.waitForGroup(this.id, options);
  }

  follow(options?: FollowOptions): AsyncGenerator<SentEvent<GroupStream>, void, undefined> {
    return this.queue.followGroup(this.id, options);
  }

  /**
   * Wait for the end of the group, and return the results in the order of submission. Rejects with the failure of the
   * first task that has no result, and with `ResultExpired` if tasks were deleted since.
   */
  async results(options: WaitOptions = {}): Promise<unknown[]> {
    const group = await this.wait(options);
    const { signal } = options;
    const results: unknown[] = [];
    for await (const line of this.queue.groupResults(this.id, { signal })) {
      const isInline = line.status === "completed" && !line.stored;
      results.push(isInline ? line.result : await this.queue.resultOf(await this.queue.read(line.id, { signal }), { signal }));
    }
    if (results.length < group.total) {
      const detail = `${group.total - results.length} of the ${group.total} tasks of group ${this.id} were deleted`;
      throw new ResultExpired({ type: "/v1/problems/result-expired", title: "Gone", status: 410, detail });
    }
    return results;
  }
}
