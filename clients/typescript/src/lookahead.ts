/** Decides how many tasks to claim, so that those that wait here are about 100 ms of work at most. */
const AHEAD_SECONDS = 0.1;
const STUCK_SECONDS = 0.2;
const SHORTEST_SECONDS = 1e-6;
const WEIGHT_OF_LONGER = 0.5;
const WEIGHT_OF_SHORTER = 0.1;
const MAX_CLAIM = 1000;

/**
 * The run time of a task is estimated from those of the last ones; longer ones count more. The number grows step by
 * step while the server has as many tasks as were claimed, so that several idle workers share a short queue.
 */
export class Lookahead {
  #estimate: number | undefined;
  #window = 1;
  #hasBacklog = false;
  #progressAt = 0;

  constructor(
    readonly concurrency: number,
    readonly prefetch: number,
  ) {}

  /** Return how many tasks to claim, for `free` slots that none of the `waiting` tasks needs. */
  claimable(free: number, waiting: number): number {
    const limit = this.#ahead();
    if (free > 0) return Math.min(free + limit, MAX_CLAIM);
    return this.#hasBacklog && waiting <= Math.floor(limit / 2) ? limit - waiting : 0;
  }

  #ahead(): number {
    if (this.#estimate === undefined) return 0;
    const planned = Math.floor((this.concurrency * AHEAD_SECONDS) / Math.max(this.#estimate, SHORTEST_SECONDS));
    return Math.min(this.#window, planned, this.prefetch);
  }

  /** Notice that a claim got tasks, and whether there may be more. */
  claimed(count: number, at: number, isFull: boolean): void {
    this.#progressAt = at;
    this.#hasBacklog = isFull;
    this.#window = isFull ? Math.min(2 * this.#window, Math.max(this.prefetch, 1)) : Math.max(1, count);
  }

  /** Notice that the tasks that waited are released: claim none until there is a free slot. */
  handedBack(): void {
    this.#hasBacklog = false;
    this.#window = 1;
  }

  began(at: number): void {
    this.#progressAt = at;
  }

  ended(seconds: number): void {
    const before = this.#estimate ?? seconds;
    const weight = seconds > before ? WEIGHT_OF_LONGER : WEIGHT_OF_SHORTER;
    this.#estimate = before + weight * (seconds - before);
  }

  /** Return after how many seconds the tasks that wait have waited for too long. */
  secondsUntilStuck(at: number): number {
    return this.#progressAt + STUCK_SECONDS - at;
  }
}
