/** Which failed requests are repeated, after which pause, and for how long: as the Python client does. */
import { ProblemError, ServerUnreachable, UnexpectedResponse } from "./errors.js";
import { InternalJobNotConfigured, RequestInProgress } from "./problems.js";

const FIRST_PAUSE_SECONDS = 0.25;
const LONGEST_PAUSE_SECONDS = 15;
const BUSY = new Set([429, 502, 503, 504]);
// 401 is transient: the next request asks for the token again, and may get a fresh one.
const TRANSIENT = new Set([401, 408, 425, 429]);
const SERVER_ERROR = 500;
// Platforms count the milliseconds of a timer in 31 bits, and call a longer one at once.
const LONGEST_TIMER_MILLISECONDS = 2 ** 31 - 1;

/** Growing pauses, each shortened at random by up to 30 %, so that many clients do not repeat at the same moment. */
export class Backoff {
  #failures = 0;

  constructor(readonly longestSeconds = LONGEST_PAUSE_SECONDS) {}

  /** Return the seconds to wait after `error`: its Retry-After at least. */
  after(error: unknown): number {
    return Math.max(this.next(), retryAfter(error));
  }

  next(): number {
    const pause = Math.min(this.longestSeconds, FIRST_PAUSE_SECONDS * 2 ** Math.min(this.#failures, 30));
    this.#failures += 1;
    return pause * (1 - 0.3 * Math.random());
  }

  reset(): void {
    this.#failures = 0;
  }
}

/** Return the seconds of Retry-After, 0 without one. */
export function retryAfter(error: unknown): number {
  return error instanceof ProblemError || error instanceof UnexpectedResponse ? error.retryAfterSeconds : 0;
}

/** Return the HTTP status of the server's response, undefined if there was none. */
export function statusOf(error: unknown): number | undefined {
  return error instanceof ProblemError ? error.status : undefined;
}

/** Return whether the server did not respond, or a proxy responded instead. */
export function isConnectionError(error: unknown): boolean {
  return error instanceof ServerUnreachable || error instanceof UnexpectedResponse;
}

/** Return whether an application that hosts the server refused the token or the permissions. */
export function isRefusalOfHost(error: unknown): boolean {
  return error instanceof UnexpectedResponse && error.isRefusal;
}

/** Return whether the server, or the application that hosts it, refused the token. */
export function isUnauthorized(error: unknown): boolean {
  return statusOf(error) === 401 || (isRefusalOfHost(error) && (error as UnexpectedResponse).status === 401);
}

/** Return whether the server did not respond, is too busy, or is still starting. */
export function isUnreachable(error: unknown): boolean {
  return (isConnectionError(error) && !isRefusalOfHost(error)) || BUSY.has(statusOf(error) ?? 0);
}

/** Return whether the same request may succeed later. */
export function isTransient(error: unknown): boolean {
  const status = statusOf(error);
  return isConnectionError(error) || (status !== undefined && (TRANSIENT.has(status) || status >= SERVER_ERROR));
}

/** Return whether a request with an `Idempotency-Key` is sent again with the same key. */
export function isRepeatable(error: unknown): boolean {
  if (error instanceof InternalJobNotConfigured) return false;
  return isUnreachable(error) || error instanceof RequestInProgress;
}

/** Return whether the server does not hold the task for this attempt. */
export function isGone(error: unknown): boolean {
  return statusOf(error) === 404 || statusOf(error) === 409;
}

/** Return whether the same report without its result or text may be accepted. */
export function isContentRefused(error: unknown): boolean {
  return [413, 422].includes(statusOf(error) ?? 0) || (error instanceof UnexpectedResponse && error.status === 413);
}

/** Return an error in one line, for a log. */
export function describe(error: unknown): string {
  try {
    return error instanceof Error ? `${error.name || "Error"}: ${error.message}` : String(error);
  } catch {
    return "Error: it has no text";
  }
}

/** Calls `act` once each response of a minute was a 401: servers that restart one by one may have different secrets meanwhile. */
export class RefusedToken {
  static readonly seconds = 60;
  #since: number | undefined;

  constructor(readonly act: (error: unknown) => void) {}

  /** Note a response, or why there was none. */
  note(error: unknown): void {
    if (!isUnauthorized(error)) this.#since = undefined;
    else if (now() - (this.#since ??= now()) >= RefusedToken.seconds) this.act(error);
  }
}

export interface RepeatOptions {
  seconds: number;
  signal?: AbortSignal | undefined;
  isRetryable?: (error: unknown) => boolean;
  /** Called before each pause. */
  onRetry?: (error: unknown, pauseSeconds: number) => void;
}

/** Return what `call` resolves to; repeat it for some seconds while it fails with a retryable error. */
export async function repeated<Result>(call: () => Promise<Result>, options: RepeatOptions): Promise<Result> {
  const { seconds, signal, isRetryable = isUnreachable, onRetry } = options;
  const backoff = new Backoff();
  let since: number | undefined;
  for (;;) {
    try {
      return await call();
    } catch (error) {
      signal?.throwIfAborted();
      const pause = backoff.after(error);
      const elapsed = since === undefined ? 0 : now() - since;
      if (!isRetryable(error) || elapsed + pause > seconds) throw error;
      // One attempt may take longer than all the time; it is repeated once all the same.
      since ??= now();
      onRetry?.(error, pause);
      await sleep(pause, signal);
    }
  }
}

/** Return seconds of a clock that never goes back. */
export function now(): number {
  return performance.now() / 1000;
}

/** Call a function after some seconds, at the latest after 24 days. */
export function after(seconds: number, act: () => void): ReturnType<typeof setTimeout> {
  return setTimeout(act, Math.min(1000 * seconds, LONGEST_TIMER_MILLISECONDS));
}

/** Wait. Rejects with the reason of the signal once it is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason as Error);
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = after(seconds, () => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    });
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
