// The log of an attempt: what is there, and the lines that follow.
import { get } from "../api.js";
import { count, exact, plural, timeOfDay } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useSignal } from "../lib.js";
import { route, setQuery } from "../router.js";
import { Button, Empty, Failure, Loading, saveAs, Section } from "../ui.js";

const MAX_SHOWN = 5000;

// Read the lines after a number, the last `size` of them.
async function readAll(id, attempt, abort, after = 0, size = MAX_SHOWN) {
  let lines = [];
  for (;;) {
    const part = await get(`/tasks/${id}/log`, { attempt, after }, { signal: abort });
    lines = [...lines, ...part.lines].slice(-size);
    if (!part.next) return { lines, dropped: part.dropped, last: part.last };
    after = part.next;
  }
}

// `news` is the last `log` event of the task's stream. `attempt` is the number of the last claim; `attempts` has the number and the
// claim of each attempt, the last one first: a claim that never started is no attempt, and has no log.
export function Log({ id, attempt, attempts, news, isEnded }) {
  const { query } = route.value;
  const shown = attempts.find(([number]) => String(number) === query.get("attempt"))?.[1] ?? attempts[0]?.[1] ?? attempt;
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
  const search = query.get("log") ?? "";
  const isFollowing = useSignal(true);
  const lines = log.value?.attempt === shown ? log.value.lines : [];
  const text = search.trim().toLowerCase();
  const matches = text ? lines.filter((line) => `${line.level} ${line.text}`.toLowerCase().includes(text)) : lines;
  const save = async () => {
    const { lines: all } = await readAll(id, shown, undefined, 0, Infinity);
    const content = all.map((line) => [line.at, line.level, line.text].filter(Boolean).join(" "));
    saveAs(new Blob([`${content.join("\n")}\n`], { type: "text/plain" }), `log-${id}-${shown}.txt`);
  };
  const actions = html`
    ${attempts.length > 1 && html`<label>Attempt <select value=${attempts.find(([, claim]) => claim === shown)?.[0]} onChange=${(event) => setQuery({ attempt: event.target.value })}>
      ${attempts.map(([number]) => html`<option key=${number} value=${number}>${number}</option>`)}</select></label>`}
    ${lines.length > 0 && html`<input type="search" class="small" aria-label="Search in the log" placeholder="Search" value=${search}
        onInput=${(event) => setQuery({ log: event.target.value })} />
      ${!isEnded && shown === attempt && html`<button type="button" class="small" aria-pressed=${isFollowing.value ? "true" : "false"}
        onClick=${() => (isFollowing.value = !isFollowing.value)}>Follow</button>`}
      <${Button} class="small" onClick=${save}>Download<//>`}`;
  const nothing = !shown ? `No worker has claimed the task${isEnded ? "" : " yet"}.` : isEnded || shown !== attempt ? "The job has written no line." : "No line yet.";
  return html`<${Section} title="Log" actions=${actions}>
    ${error.value && html`<${Failure} error=${error.value} />`}
    ${shown && log.value?.attempt !== shown && !error.value ? html`<${Loading} />` : lines.length ? html`
      ${log.value.dropped > 0 && html`<p class="help">${plural(log.value.dropped, "line")} before these, or between them, ${log.value.dropped === 1 ? "is" : "are"} not kept: see the settings <code>task_log_max_lines</code> and <code>task_log_max_bytes</code>.</p>`}
      ${lines.length === MAX_SHOWN && html`<p class="help">The last ${count(MAX_SHOWN)} lines; a download has all that are kept.</p>`}
      ${text && html`<p class="help" role="status">${count(matches.length)} of ${plural(lines.length, "line")}</p>`}
      <${Lines} lines=${matches} text=${text} isFollowing=${isFollowing} />` : html`<${Empty}>${nothing}<//>`}<//>`;
}

// The parts of a text that match a search are marked.
function marked(line, text) {
  if (!text) return line;
  const parts = [];
  let from = 0;
  for (let at = line.toLowerCase().indexOf(text); at >= 0; at = line.toLowerCase().indexOf(text, from)) {
    parts.push(line.slice(from, at), html`<mark>${line.slice(at, at + text.length)}</mark>`);
    from = at + text.length;
  }
  return [...parts, line.slice(from)];
}

function Lines({ lines, text, isFollowing }) {
  const element = useRef();
  // New lines scroll into view, unless the reader has scrolled up.
  useLayoutEffect(() => {
    if (isFollowing.value) element.current.scrollTop = element.current.scrollHeight;
  }, [lines, isFollowing.value]);
  const onScroll = ({ target }) => (isFollowing.value = target.scrollHeight - target.scrollTop - target.clientHeight < 20);
  return html`<div class="log" ref=${element} onScroll=${onScroll} role="log" aria-label="Log" tabindex="0">
    ${lines.map((line) => html`<div key=${line.n} class="line is-${line.level} from-${line.source}"><time title=${exact(line.at)}>${timeOfDay(line.at)}</time>
      ${line.level && line.level !== "info" && html`<b>${line.level}</b> `}<span>${marked(line.text, text)}</span></div>`)}</div>`;
}
