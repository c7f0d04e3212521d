/** The errors that are no problems of the server, and the base class of those that are. */
import type { Problem, TaskResponse } from "./rest.js";

/** An error of this package. */
export class JoblibError extends Error {
  override readonly name: string = "JoblibError";
}

/** The server refused a request (RFC 9457). Each problem has a class of its own, such as `TaskNotFound`. */
export class ProblemError extends JoblibError {
  override readonly name: string = "ProblemError";
  /** `/v1/problems/<name>`: an address on the server that explains the problem. */
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string | undefined;

  constructor(
    /** The body of the response, with the members that this problem has beside those of every problem. */
    readonly problem: Problem & Record<string, unknown>,
    /** `Retry-After` of the response, in seconds. */
    readonly retryAfterSeconds: number = 0,
  ) {
    super(problem.detail ?? problem.title);
    this.type = problem.type;
    this.title = problem.title;
    this.status = problem.status;
    this.detail = problem.detail ?? undefined;
  }
}

export type ProblemClass = new (problem: Problem & Record<string, unknown>, retryAfterSeconds?: number) => ProblemError;

/** The server did not respond. Unless `wasSent` is false, it may have applied the request. */
export class ServerUnreachable extends JoblibError {
  override readonly name: string = "ServerUnreachable";

  constructor(
    message: string,
    readonly wasSent: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** The response is not from a zndraw-joblib server, but probably from a proxy in front of it, or from its host. */
export class UnexpectedResponse extends JoblibError {
  override readonly name: string = "UnexpectedResponse";

  constructor(
    message: string,
    readonly status: number,
    readonly retryAfterSeconds: number = 0,
    /** Whether an application that hosts the server refused the token or the permissions. */
    readonly isRefusal: boolean = false,
  ) {
    super(message);
  }
}

/** A task or a group has not ended in the given time. */
export class WaitTimeout extends JoblibError {
  override readonly name: string = "WaitTimeout";
}

/** A task has ended without a result. `code` is `error`, or the name of a problem, like `worker-lost`. */
export class TaskFailed extends JoblibError {
  override readonly name: string = "TaskFailed";
  readonly code: string;

  constructor(readonly task: TaskResponse) {
    const code = task.error_code ?? task.status;
    super(`Task ${task.id} ${task.status} (${code}): ${task.error ?? `the task is ${task.status}`}`);
    this.code = code;
  }

  /** The traceback of the job's own code; undefined if the job raised no exception. */
  get traceback(): string | undefined {
    return this.task.failure?.traceback;
  }
}

/** A task was cancelled, so it has no result. */
export class TaskCancelled extends TaskFailed {
  override readonly name: string = "TaskCancelled";
}

/** A value cannot be sent as JSON; the message names its place. */
export class NotSerializable extends JoblibError {
  override readonly name: string = "NotSerializable";
}

/** A job throws it to be tried again, after `afterSeconds` if they are given, as far as `max_attempts` allows. */
export class Retry extends JoblibError {
  override readonly name: string = "Retry";

  constructor(
    message: string,
    readonly afterSeconds?: number,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A job throws it to fail for good, whatever its retry policy says. */
export class NonRetryable extends JoblibError {
  override readonly name: string = "NonRetryable";
}

/** Why the signal of a running task is aborted: it was cancelled, or this worker does not hold it any longer. */
export class TaskStopped extends JoblibError {
  override readonly name: string = "TaskStopped";

  constructor(
    taskId: string,
    readonly reason: "cancelled" | "lost" | "released",
  ) {
    super(`Task ${taskId} was ${reason === "lost" ? "lost to this worker" : reason}`);
  }
}
