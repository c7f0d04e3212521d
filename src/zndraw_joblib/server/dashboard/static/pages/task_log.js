// The log of an attempt: what is there, and the lines that follow.
import { get } from "../api.js";
import { count, exact, timeOfDay } from "../format.js";
import { html, useEffect, useId, useLayoutEffect, useRef, useSignal } from "../lib.js";
import { route, setQuery } from "../router.js";
import { Empty, Failure, saveAs, Section } from "../ui.js";

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
  const selected = Number(route.value.query.get("attempt"));
  const shown = attempts.find(([number]) => number === selected)?.[1] ?? attempts[0]?.[1] ?? attempt;
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
  const choose = ({ target }) => setQuery({ attempt: String(attempts.find(([, claim]) => claim === Number(target.value))[0]) });
  const choice = attempts.length > 1 && html`<label>Attempt <select value=${shown} onChange=${choose}>
    ${attempts.map(([number, claim]) => html`<option key=${claim} value=${claim}>${number}</option>`)}</select></label>`;
  const lines = log.value?.lines ?? [];
  const save = () => saveAs(new Blob([lines.map((line) => `${line.at} ${line.level ?? ""} ${line.text}\n`).join("")], { type: "text/plain" }), `task-${id}-attempt-${shown}.log`);
  const actions = html`${choice}${lines.length > 0 && html`<button type="button" class="small" onClick=${save}>Download</button>`}`;
  return html`<${Section} title="Log" actions=${actions}>
    ${error.value && html`<${Failure} error=${error.value} />`}
    ${log.value?.lines.length ? html`<${Lines} ...${log.value} isEnded=${isEnded} />` : html`<${Empty}>${!shown ? `No worker has claimed the task${isEnded ? "" : " yet"}.` : isEnded || shown !== attempt ? "The job has written no line." : "No line yet."}<//>`}<//>`;
}

function Lines({ lines, dropped, isEnded }) {
  const element = useRef();
  // Whether new lines scroll into view: until the reader scrolls up.
  const follows = useSignal(true);
  const [searchId, text] = [useId(), (route.value.query.get("log") ?? "").toLowerCase()];
  const matches = text ? lines.filter((line) => line.text.toLowerCase().includes(text)) : lines;
  useLayoutEffect(() => {
    if (follows.value) element.current.scrollTop = element.current.scrollHeight;
  }, [matches.length, lines.at(-1)?.n, follows.value]);
  const onScroll = ({ target }) => (follows.value = target.scrollHeight - target.scrollTop - target.clientHeight < 20);
  return html`<div class="log-tools"><label class="hidden" for=${searchId}>Search in the log</label>
      <input id=${searchId} type="search" placeholder="Search in the log" value=${text} autocomplete="off" onInput=${(event) => setQuery({ log: event.target.value })} />
      ${text && html`<span class="help" role="status">${count(matches.length)} of ${count(lines.length)} lines</span>`}
      ${!isEnded && html`<label class="check"><input type="checkbox" checked=${follows.value} onChange=${(event) => (follows.value = event.target.checked)} /> Follow</label>`}</div>
    ${dropped > 0 && html`<p class="help">${count(dropped)} lines were not kept: the server keeps <code>task_log_max_bytes</code> of each attempt.</p>`}
    <div class="log" ref=${element} onScroll=${onScroll} role="log" aria-label="Log" tabindex="0">
      ${matches.map((line) => html`<div key=${line.n} class="line is-${line.level} from-${line.source}"><time title=${exact(line.at)}>${timeOfDay(line.at)}</time>
        ${line.level && line.level !== "info" && html`<b>${line.level}</b> `}<span>${text ? marked(line.text, text) : line.text}</span></div>`)}</div>`;
}

// A line with the matches of a text in lower case.
function marked(line, text) {
  const parts = [];
  for (let at = 0; at <= line.length; ) {
    const next = line.toLowerCase().indexOf(text, at);
    if (next < 0) return [...parts, line.slice(at)];
    parts.push(line.slice(at, next), html`<mark>${line.slice(next, next + text.length)}</mark>`);
    at = next + text.length;
  }
  return parts;
}
