// The log of an attempt: what is there, and the lines that follow.
import { get } from "../api.js";
import { count, exact, timeOfDay } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useSignal } from "../lib.js";
import { Empty, Failure, Section } from "../ui.js";

const MAX_SHOWN = 5000;

// Read the lines after a number.
async function readAll(id, attempt, abort, after = 0) {
  let lines = [];
  for (;;) {
    const part = await get(`/tasks/${id}/log`, { attempt, after }, { signal: abort });
    lines = [...lines, ...part.lines].slice(-MAX_SHOWN);
    if (!part.next) return { lines, dropped: part.dropped, last: part.last };
    after = part.next;
  }
}

// `news` is the last `log` event of the task's stream. `attempt` is the number of the last claim; `attempts` has the number and the
// claim of each attempt, the last one first: a claim that never started is no attempt, and has no log.
export function Log({ id, attempt, attempts, news, isEnded }) {
  const selected = useSignal(null);
  const shown = selected.value ?? attempts[0]?.[1] ?? attempt;
  const log = useSignal(null);
  const error = useSignal(null);
  useEffect(() => {
    if (!shown) return undefined;
    const controller = new AbortController();
    readAll(id, shown, controller.signal).then(
      (answer) => (log.value = { ...answer, attempt: shown }),
      (problem) => controller.signal.aborted || (error.value = problem),
    );
    return () => controller.abort();
  }, [id, shown]);
  useEffect(() => {
    const shownLog = log.value;
    if (!news || !shownLog || news.attempt !== shownLog.attempt) return undefined;
    const add = (more) => (log.value = { ...shownLog, lines: [...shownLog.lines, ...more].slice(-MAX_SHOWN), last: more.at(-1).n });
    const more = news.lines.map((line, index) => ({ ...line, n: news.first + index })).filter((line) => line.n > shownLog.last);
    if (!more.length) return undefined;
    if (more[0].n === shownLog.last + 1) return void add(more);
    // Several events came at once, or some while the page was hidden.
    const controller = new AbortController();
    readAll(id, shownLog.attempt, controller.signal, shownLog.last).then((answer) => answer.lines.length && add(answer.lines), () => {});
    return () => controller.abort();
  }, [news, log.value?.attempt]);
  const choice = attempts.length > 1 && html`<label>Attempt <select value=${shown} onChange=${(event) => (selected.value = Number(event.target.value))}>
    ${attempts.map(([number, claim]) => html`<option key=${claim} value=${claim}>${number}</option>`)}</select></label>`;
  return html`<${Section} title="Log" class="wide" actions=${choice}>
    ${error.value && html`<${Failure} error=${error.value} />`}
    ${log.value?.lines.length ? html`<${Lines} ...${log.value} />` : html`<${Empty}>${!shown ? `No worker has claimed the task${isEnded ? "" : " yet"}.` : isEnded || shown !== attempt ? "The job has written no line." : "No line yet."}<//>`}<//>`;
}

function Lines({ lines, dropped }) {
  const element = useRef();
  const isAtEnd = useRef(true);
  // New lines scroll into view, unless the reader has scrolled up.
  useLayoutEffect(() => {
    if (isAtEnd.current) element.current.scrollTop = element.current.scrollHeight;
  }, [lines]);
  const onScroll = ({ target }) => (isAtEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < 20);
  return html`${dropped > 0 && html`<p class="help">${count(dropped)} lines were not kept.</p>`}
    <div class="log" ref=${element} onScroll=${onScroll} role="log" aria-label="Log" tabindex="0">
      ${lines.map((line) => html`<div key=${line.n} class="line is-${line.level} from-${line.source}"><time title=${exact(line.at)}>${timeOfDay(line.at)}</time>
        ${line.level && line.level !== "info" && html`<b>${line.level}</b> `}<span>${line.text}</span></div>`)}</div>`;
}
