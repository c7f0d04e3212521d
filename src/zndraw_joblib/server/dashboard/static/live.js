// Data that stays up to date while the page is visible: by polling, or by a stream of events.
import { lostSince, Problem, readEvents } from "./api.js";
import { token } from "./auth.js";
import { signal, useLayoutEffect, useMemo } from "./lib.js";

const MAX_RETRY_SECONDS = 15;
export const isVisible = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (isVisible.value = !document.hidden));
// Counts the tries to reach a server that is gone; a change makes all pages try at once.
export const retryNow = signal(0);

// Ends when it is aborted, when the page is hidden or shown, or after `seconds`.
function pause(seconds, abort) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    const wake = () => (clearTimeout(timer), resolve());
    abort.addEventListener("abort", wake, { once: true });
  });
}

// Runs `work(abort)` while the page is visible; again when a value of `keys`, the token or the visibility changes.
function useWhileVisible(work, keys) {
  const isShown = isVisible.value;
  // Before the page is painted, which may take longer than a request.
  useLayoutEffect(() => {
    if (!isShown) return undefined;
    const controller = new AbortController();
    work(controller.signal).catch((error) => {
      if (!controller.signal.aborted) throw error;
    });
    return () => controller.abort();
  }, [isShown, token.value, retryNow.value, ...keys]);
}

const isFinal = (error) => error instanceof Problem && error.status < 500 && error.status !== 429;
const backoff = (failures) => Math.min(MAX_RETRY_SECONDS, 2 ** (failures - 1));

// A state { data, error, isLoading, reload } of `load(abort)`, which is called every `seconds`, or once with null.
// `keys` are the values on which it depends: with others it starts anew. After an error the old data stays.
export function usePoll(load, keys = [], seconds = 5) {
  const key = JSON.stringify(keys);
  const state = useMemo(() => ({ value: signal({ data: null, error: null, isLoading: true }), again: signal(0) }), [key]);
  useWhileVisible(async (abort) => {
    let failures = 0;
    while (!abort.aborted) {
      try {
        const data = await load(abort);
        if (abort.aborted) return;
        state.value.value = { data, error: null, isLoading: false };
        failures = 0;
      } catch (error) {
        if (abort.aborted) return;
        state.value.value = { ...state.value.value, error, isLoading: false };
        if (isFinal(error) && seconds === null) return;
        failures += 1;
      }
      if (seconds === null && !failures) return;
      await pause(failures ? Math.max(backoff(failures), isFinal(state.value.value.error) ? MAX_RETRY_SECONDS : 0) : seconds, abort);
    }
  }, [key, state.again.value]);
  return { ...state.value.value, reload: () => (state.again.value += 1) };
}

// Follow a stream of events. `on(event, data)` gets each; the stream continues where it ended. Returns whether it
// is connected, and the problem that ended it for good.
export function useStream(path, on, { keys = [], isOver } = {}) {
  const state = useMemo(() => signal({ isOpen: false, error: null }), [path, ...keys]);
  useWhileVisible(async (abort) => {
    let last;
    let failures = 0;
    while (!abort.aborted && path && !isOver?.()) {
      try {
        await readEvents(path, {
          last,
          signal: abort,
          onOpen: () => {
            failures = 0;
            state.value = { isOpen: true, error: null };
          },
          on: (event, data, id) => {
            last = id ?? last;
            if (!abort.aborted) on(event, data);
          },
        });
      } catch (error) {
        if (abort.aborted) break;
        if (isFinal(error)) {
          state.value = { isOpen: false, error };
          return;
        }
        failures += 1;
        // A connection that broke while its answer was read.
        if (!(error instanceof Problem)) lostSince.value ??= new Date();
      }
      state.value = { ...state.value, isOpen: false };
      await pause(failures ? backoff(failures) : 1, abort);
    }
    state.value = { ...state.value, isOpen: false };
  }, [path, ...keys]);
  return state.value;
}

// Reads on through the parts of a list, of which `first` is the state of the first part, until there are `size` items or
// `load(cursor, abort)` has no more. Returns { items, next, isReading, stop, goOn }; `keys` are as those of usePoll.
export function useParts(first, load, size, keys) {
  const key = JSON.stringify(keys);
  const state = useMemo(() => ({ more: signal([]), next: signal(undefined), isStopped: signal(false) }), [key]);
  const begin = first.data?.next ?? null;
  const items = [...new Map([...(first.data?.items ?? []), ...state.more.value].map((item) => [item.id, item])).values()];
  const next = state.next.value === undefined ? begin : state.next.value;
  const isReading = Boolean(next) && items.length < size && !state.isStopped.value && first.data !== null;
  useWhileVisible(async (abort) => {
    let cursor = next;
    for (let failures = 0; isReading && cursor && !abort.aborted; ) {
      try {
        const part = await load(cursor, abort);
        if (abort.aborted) return;
        cursor = part.next;
        failures = 0;
        state.more.value = [...state.more.value, ...part.items];
        state.next.value = cursor;
        if ((first.data?.items.length ?? 0) + state.more.value.length >= size) return;
      } catch (error) {
        if (abort.aborted) return;
        if (isFinal(error)) return void (state.isStopped.value = true);
        failures += 1;
        await pause(backoff(failures), abort);
      }
    }
  }, [key, isReading]);
  return { items, next, isReading, stop: () => (state.isStopped.value = true), goOn: () => (state.isStopped.value = false), isStopped: state.isStopped.value };
}
