// The parts that pages are made of.
import { get, Problem, readParts } from "./api.js";
import { canReadAll, ownRoom } from "./auth.js";
import { Exact, stringify } from "./json.js";
import { between, compact, count, duration, exact, localTimes, momentOf, MOMENTS, partsOf, plural, shortId } from "./format.js";
import { html, signal, useEffect, useErrorBoundary, useId, useRef, useSignal } from "./lib.js";
import { usePoll } from "./live.js";
import { go, href, route, setQuery } from "./router.js";

// --- Text -----------------------------------------------------------------------------------------------------------

const narrow = matchMedia("(max-width: 45rem)");
// Whether the window is as narrow as a phone.
export const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => (isNarrow.value = narrow.matches));

// The present time, once a second, for ages; it stands still while the page is hidden.
export const now = signal(Date.now());
setInterval(() => document.hidden || (now.value = Date.now()), 1000);

// How long ago a moment is, or how long it will take; the moment itself in the title.
export function Ago({ at, isShort = false }) {
  if (!at) return html`<span class="none">–</span>`;
  const seconds = (now.value - new Date(at)) / 1000;
  const whole = duration(Math.max(1, Math.abs(Math.round(seconds))));
  const text = isShort ? whole.split(" ").slice(0, 2).join(" ") : whole;
  return html`<time datetime=${at} title=${exact(at)}>${seconds < -1 ? `in ${text}` : isShort ? text : `${text} ago`}</time>`;
}

export const Between = ({ from, to }) => html`<span>${duration(between(from, to ?? (from && new Date(now.value).toISOString())))}</span>`;

// A text in one line, cut at its end; on a phone in two, and all of it on tap.
export function Clip({ text, before, class: name = "" }) {
  const isOpen = useSignal(false);
  if (!isNarrow.value) return html`<span class="clip ${name}" title=${text}>${before}${text}</span>`;
  return html`<button type="button" class="plain clip ${name} ${isOpen.value ? "is-open" : ""}" aria-expanded=${isOpen.value ? "true" : "false"}
    onClick=${() => (isOpen.value = !isOpen.value)}>${before}${text}</button>`;
}

// A label with a tone: good, bad, warn, busy, quiet.
export const Badge = ({ tone = "quiet", title, children }) => html`<span class="badge ${tone}" title=${title}>${children}</span>`;

const TONES = { pending: "quiet", claimed: "warn", running: "busy", completed: "good", failed: "bad", cancelled: "quiet" };
export const STATUSES = Object.keys(TONES);
const WAITS = { time: ["scheduled", "quiet"], worker: ["waits for worker", "bad"], resume: ["waits for resume", "warn"], predecessor: ["waits for tasks", "quiet"] };
const WAITS_BECAUSE = { time: "It enters its queue when it is due", worker: "No worker serves its job", resume: "Its job, its room or all rooms are paused", predecessor: "It waits for the ends of other tasks or groups" };
// Of a pending task also what it `waitsFor`, beside a free slot.
export function Status({ status, waitsFor }) {
  const [text, tone] = (status === "pending" && WAITS[waitsFor]) || [status, TONES[status]];
  return html`<${Badge} tone=${tone} title=${text !== status ? WAITS_BECAUSE[waitsFor] : undefined}>${text}<//>`;
}

// A name of several parts: a line may break after a separator.
export const Name = ({ text }) => text.split(/(?<=[:_./-])/).map((part, index) => (index ? html`<wbr />${part}` : part));

// The tags of a task: each leads to the tasks that have it.
export const Tags = ({ tags }) => tags?.length > 0 && html`<span class="tags">${tags.map((tag) => html`<a key=${tag} class="tag" href=${href("tasks", { tag })} title=${`Tasks with the tag ${tag}`}>${tag}</a>`)}</span>`;
export const TaskLink = ({ id }) => html`<a class="id" href=${href(["tasks", id])} title=${id}>${shortId(id)}</a>`;
// A job by its own name; the room, unless it is that of all jobs, and the category come before it, dimmed.
function JobName({ name }) {
  const { room, category, name: own } = partsOf(name);
  const before = [room === "@global" ? "" : room, category].filter(Boolean);
  return html`${before.length > 0 && html`<span class="before"><${Name} text=${`${before.join(":")}:`} /></span><wbr />`}<${Name} text=${own} />`;
}
export const JobLink = ({ name }) => html`<a class="name" href=${href(["jobs", name])} title=${name}><${JobName} name=${name} /></a>`;
export const RoomLink = ({ id }) => html`<a class="name" href=${href(["rooms", id])} title=${id}><${Name} text=${id} /></a>`;
// The names of workers by id, read once each; null for those that are gone or may not be read.
const workerNames = new Map();
export function nameOfWorker(id) {
  if (!workerNames.has(id)) {
    const name = signal(null);
    workerNames.set(id, name);
    if (canReadAll.value) get(`/workers/${id}`).then((worker) => (name.value = worker.name), () => {});
  }
  return workerNames.get(id).value;
}

// Without a `name`, not even null, the link reads it.
export function WorkerLink({ id, name }) {
  if (!id) return html`<span class="none">–</span>`;
  const text = name === undefined ? nameOfWorker(id) : name;
  return html`<a class=${text ? "name" : "id"} href=${href(["workers", id])} title=${id}>${text ?? shortId(id)}</a>`;
}

// A value as JSON, with all digits of its numbers; longer JSON is a tree, whose parts open.
const MAX_PLAIN_PARTS = 60;
const PART = 100;
const isLeaf = (value) => value === null || typeof value !== "object" || value instanceof Exact;

// Whether a value has more than `size` parts.
function isLarger(value, size) {
  let rest = size;
  const visit = (item) => {
    rest -= 1;
    if (rest > 0 && !isLeaf(item)) Object.values(item).every((part) => (visit(part), rest > 0));
  };
  visit(value);
  return rest <= 0;
}

export const Json = ({ value, label }) => isLarger(value, MAX_PLAIN_PARTS)
  ? html`<div class="json tree" tabindex="0" role="region" aria-label=${label}><${Branch} value=${value} isOpen /></div>`
  : html`<pre class="json" tabindex="0" role="region" aria-label=${label}>${stringify(value, 2)}</pre>`;

// An object or a list, whose parts are drawn when it is opened, some at a time.
function Branch({ name, value, isOpen = false }) {
  const open = useSignal(isOpen);
  const size = useSignal(PART);
  const key = name === undefined ? "" : html`<b>${name}</b>: `;
  const isShort = isLeaf(value) || Object.keys(value).length === 0 || (Array.isArray(value) && !isLarger(value, 12) && stringify(value).length < 88);
  if (isShort) return html`<div class="leaf">${key}${stringify(value)}</div>`;
  const entries = Object.entries(value);
  const next = Math.min(PART, entries.length - size.value);
  return html`<details open=${isOpen} onToggle=${(event) => (open.value = event.target.open)}>
    <summary>${key}<span class="help">${plural(entries.length, Array.isArray(value) ? "item" : "field")}</span></summary>
    ${open.value && html`${entries.slice(0, size.value).map(([part, item]) => html`<${Branch} key=${part} name=${part} value=${item} />`)}
      ${next > 0 && html`<button type="button" class="small" onClick=${() => (size.value += PART)}>${next} more of ${count(entries.length)}</button>`}`}</details>`;
}

export function Copy({ text, label = "Copy" }) {
  const isDone = useSignal(false);
  const copy = async () => {
    await copyText(text);
    isDone.value = true;
    setTimeout(() => (isDone.value = false), 2000);
  };
  return html`<button type="button" class="small" onClick=${copy}>${isDone.value ? "Copied" : label}</button>`;
}

async function copyText(text) {
  // The clipboard's own interface exists only in secure contexts, and the page works over plain HTTP.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  return area.remove();
}

// Let the browser save a blob as a file.
export function saveAs(blob, name) {
  const address = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// --- States ---------------------------------------------------------------------------------------------------------

export const Loading = () => html`<p class="loading" role="status">Loading …</p>`;
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// What went wrong, in the words of the API.
export function Failure({ error, retry }) {
  if (!error) return null;
  const isProblem = error instanceof Problem;
  const isOfQuery = error.status === 422 && /^query\./.test(error.message);
  return html`<div class="failure" role="alert">
    <strong>${isOfQuery ? "This address has a value that cannot be used" : isProblem ? error.fields.title || `Status ${error.status}` : "No answer"}</strong>
    <p>${localTimes(error.message).replace(/^query\./, "")}</p>
    ${isOfQuery && html`<p><a href=${href(route.value.segments)}>Remove all filters</a></p>`}
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

// The states of usePoll: loading, failed, or `children(data)`. Content stays when a later request fails. `missing` is the text,
// or what to show instead, for an id or a name that nothing has.
export function Loaded({ state, missing, children }) {
  if (missing && state.data === null && [404, 422].includes(state.error?.status)) return typeof missing === "string" ? html`<${Empty}>${missing}<//>` : missing;
  if (state.data === null) return state.error ? html`<${Failure} error=${state.error} retry=${state.reload} />` : html`<${Loading} />`;
  return html`${state.error instanceof Problem && html`<${Failure} error=${state.error} retry=${state.reload} />`}${children(state.data)}`;
}

// An error in a part leaves the others: each child is a part. New data of a part is another attempt to show it.
export const Parts = ({ children }) => [children].flat().map((child) => child && typeof child === "object" ? html`<${Part} key=${child.key}>${child}<//>` : child);

function Part({ children }) {
  const refused = useRef(null);
  const [error] = useErrorBoundary(() => (refused.current = children));
  return error && refused.current === children ? html`<p class="failure">This part cannot be shown: ${error.message}</p>` : children;
}

// --- Layout ---------------------------------------------------------------------------------------------------------

export function Page({ title, actions, children }) {
  useEffect(() => {
    document.title = `${title} · zndraw-joblib`;
  }, [title]);
  return html`<header class="page-head"><h1 tabindex="-1">${title}</h1><div class="actions">${actions}</div></header><${Parts}>${children}<//>`;
}

export function Section({ title, actions, children, class: name = "" }) {
  const id = useId();
  return html`<section class="card ${name}" aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2><div class="actions">${actions}</div></header>
    <${Parts}>${children}<//>
  </section>`;
}

// Names and values: [["Room", html`…`], …]. Pairs without a value are left out.
export const Facts = ({ items }) => html`<dl class="facts">
  ${items.filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([name, value, kind = ""]) => html`<div key=${name} class=${kind}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

// A number with its name; a link if it has an address.
export const Figure = ({ label, value, to, tone = "", title }) => {
  const inner = html`<span class="value">${value}</span><span class="label">${label}</span>`;
  return to ? html`<a class="figure ${tone}" href=${to} title=${title}>${inner}</a>` : html`<div class="figure ${tone}" title=${title}>${inner}</div>`;
};

// The label of a count of running tasks: tasks that workers have claimed, but have not started, do not run.
export const runningLabel = (counts, label = "running") => (counts.claimed ? `${label}, ${count(counts.claimed)} claimed ahead` : label);

// A menu that closes when something outside of it is clicked or focused, and on Escape.
export function Menu({ label, title, isCurrent, children }) {
  const element = useRef();
  useEffect(() => {
    const close = (event) => {
      const isOutside = !element.current.contains(event.target) || (event.type === "click" && event.target.closest("button, a"));
      if (event.type === "keydown" ? event.key === "Escape" : isOutside) element.current.open = false;
    };
    const kinds = ["click", "focusin", "keydown"];
    for (const kind of kinds) document.addEventListener(kind, close);
    return () => kinds.forEach((kind) => document.removeEventListener(kind, close));
  }, []);
  return html`<details class="menu" ref=${element}><summary class=${isCurrent ? "is-current" : ""} title=${title} aria-label=${title}>${label}</summary><div>${children}</div></details>`;
}

// --- Tables ---------------------------------------------------------------------------------------------------------

// The head of a column; one with `sortBy` sorts the rows: "failed" or "-failed", as the address says.
function Heading({ column: { name, label, class: kind = "", sortBy, isText } }) {
  const names = `${kind} is-${name}`;
  if (!sortBy) return html`<th scope="col" class=${names}>${label}</th>`;
  const present = route.value.query.get("sort") || "name";
  const order = { [sortBy]: "ascending", [`-${sortBy}`]: "descending" }[present] ?? "none";
  const next = order === "none" ? (isText ? sortBy : `-${sortBy}`) : order === "ascending" ? `-${sortBy}` : sortBy;
  return html`<th scope="col" class=${names} aria-sort=${order}><button type="button" class="sort" onClick=${() => setQuery({ sort: next === "name" ? null : next, cursor: null })}>${label}</button></th>`;
}

// `columns`: { name, label, render(row), class, sortBy }. With `selection`, a signal of a Set of keys, rows can be selected.
export function Table({ caption, columns, rows, rowKey = (row) => row.id, empty = "There is nothing here.", selection, rowLabel = rowKey, rowClass, class: name = "" }) {
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const selected = selection?.value;
  const toggle = (keys, on) => {
    const next = new Set(selected);
    for (const key of keys) on ? next.add(key) : next.delete(key);
    selection.value = next;
  };
  const keys = rows.map(rowKey);
  const all = selected && keys.every((key) => selected.has(key));
  return html`<div class="table ${name}" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>
      ${selection && html`<th scope="col" class="choose"><input type="checkbox" aria-label="Choose all rows" checked=${all}
        onChange=${(event) => toggle(keys, event.target.checked)} /></th>`}
      ${columns.map((column) => html`<${Heading} key=${column.name} column=${column} />`)}
    </tr></thead>
    <tbody>${rows.map((row) => {
      const key = rowKey(row);
      return html`<tr key=${key} class="${selected?.has(key) ? "is-chosen" : ""} ${rowClass?.(row) ?? ""}">
        ${selection && html`<td class="choose"><input type="checkbox" aria-label=${`Choose ${rowLabel(row)}`} checked=${selected.has(key)}
          onChange=${(event) => toggle([key], event.target.checked)} /></td>`}
        ${columns.map((column) => html`<td key=${column.name} class="${column.class ?? ""} is-${column.name}" data-label=${typeof column.label === "string" ? column.label : undefined}>${column.render(row)}</td>`)}
      </tr>`;
    })}</tbody>
  </table></div>`;
}

// The columns that several tables of tasks have.
export const TASK_COLUMNS = {
  id: { name: "id", label: "Task", render: (task) => html`<${TaskLink} id=${task.id} />` },
  status: { name: "status", label: "Status", render: (task) => html`<${Status} status=${task.status} waitsFor=${task.waits_for} />` },
  job: { name: "job", label: "Job", render: (task) => html`<${JobLink} name=${task.job_name} />` },
  room: { name: "room", label: "Room", render: (task) => html`<${RoomLink} id=${task.room_id} />` },
  created: { name: "created", label: "Created", render: (task) => html`<${Ago} at=${task.created_at} />` },
};

// A link to the next part of a list: `next` is the cursor of the answer. The address keeps it, so "back" returns.
export const Paging = ({ next }) => {
  const isLater = route.value.query.has("cursor");
  if (!next && !isLater) return null;
  return html`<nav class="paging" aria-label="Parts of the list">
    ${isLater && html`<button type="button" onClick=${() => setQuery({ cursor: null }, { keep: true })}>First part</button>`}
    ${next && html`<button type="button" onClick=${() => setQuery({ cursor: next }, { keep: true })}>Next part</button>`}
  </nav>`;
};

// A page of a list that the API returns in parts. The address has the values of its `filters` and `switches`, and `form` is
// where they are set. The table has `columns` and the other fields of `table`, or is `children(items, reload, isFiltered)`.
// With `isWhole` it reads all parts, to sort them. `needsRoom` is the text for a caller who has to name a room. A later part changes rarely: it is read every `laterSeconds`.
export function ListPage({ title, path, filters = [], switches = [], form, needsRoom, isWhole, laterSeconds = 5, empty, emptyIfFiltered = empty, emptyIfLater = empty, children, ...table }) {
  const { query } = route.value;
  const values = Object.fromEntries([...filters, ...switches, "cursor"].map((name) => [name, query.get(name)]));
  if (needsRoom && !canReadAll.value) values.room ??= ownRoom.value;
  const isMissingRoom = needsRoom && !canReadAll.value && !values.room;
  const load = (signal) => isMissingRoom ? { items: [], next: null } : (isWhole ? readParts : get)(path, values, { signal });
  const state = usePoll(load, [values, isWhole], values.cursor ? laterSeconds : 5);
  const isFiltered = filters.some((name) => query.get(name));
  return html`<${Page} title=${title}>
    ${form && html`<div class="card">${form}</div>`}
    ${isMissingRoom ? html`<${Empty}>Name your room above. ${needsRoom}<//>` : html`
      <${Loaded} state=${state}>${({ items, next }) => html`
        ${children ? children(items, state.reload, isFiltered)
          : html`<${Table} caption=${title} rows=${items} empty=${isFiltered ? emptyIfFiltered : values.cursor ? emptyIfLater : empty} ...${table} />`}
        ${isWhole ? next && html`<p class="help">The first ${count(items.length)} by name are sorted. Narrow the filter to sort others.</p>` : html`<${Paging} next=${next} />`}`}<//>`}<//>`;
}

// --- Filters: their values are in the address ------------------------------------------------------------------------

export const Filters = ({ children, label = "Filter" }) =>
  html`<form class="filters" role="search" aria-label=${label} onSubmit=${(event) => event.preventDefault()}>${children}</form>`;

// A field of the query; it applies on Enter, and half a second after the last key.
export function TextFilter({ name, label, placeholder, isFirst = false, type = "search", list, options = [], wholeOf }) {
  const id = useId();
  const timer = useRef(null);
  // What the user has typed. The page is shown again with each answer of the server, which must not remove it.
  const typed = useRef("");
  const value = route.value.query.get(name) ?? "";
  const present = options.find(([option]) => option === value)?.[1] ?? value;
  const isTyped = timer.current !== null || typed.current.trim() === present;
  const stop = () => {
    clearTimeout(timer.current);
    timer.current = null;
  };
  const apply = (value, isEntered) => {
    stop();
    typed.current = value;
    const text = value.trim();
    const same = options.find(([, option]) => option === text)?.[0];
    setQuery({ [name]: same ?? (isEntered && wholeOf ? wholeOf(text, options) : text), cursor: null, from: null });
  };
  const later = ({ target: { value } }) => {
    stop();
    typed.current = value;
    timer.current = setTimeout(() => apply(value), 500);
  };
  useEffect(() => stop, []);
  return html`<div class="field"><label for=${id}>${label}</label>
    <input id=${id} type=${type} name=${name} value=${isTyped ? typed.current : present} placeholder=${placeholder} list=${list} data-first=${isFirst || undefined}
      autocomplete="off" spellcheck=${false} onInput=${later} onChange=${(event) => apply(event.target.value, true)} /></div>`;
}

// A TextFilter with suggestions: `load()` returns [[value, label], …] once the field gets the focus. The field shows the
// label, the address has the value. `wholeOf(text, options)` completes what is entered.
export function SuggestingFilter({ load, name, ...rest }) {
  const id = useId();
  const options = useSignal([]);
  const read = async () => (options.value = await load());
  useEffect(() => void (route.value.query.get(name) && read()), []);
  return html`<div onFocusIn=${read}><${TextFilter} name=${name} list=${id} options=${options.value} ...${rest} />
    <datalist id=${id}>${options.value.map(([value, label]) => html`<option key=${value} value=${label} />`)}</datalist></div>`;
}

// A field that finds a task by its id or its beginning, and tasks by any other text.
export function Find({ text = "" }) {
  const id = useId();
  const find = (event) => {
    event.preventDefault();
    const sought = new FormData(event.target).get("find").trim();
    if (IS_BEGINNING.test(sought)) go(["tasks", sought]);
    else if (sought) go("tasks", { text: sought });
  };
  return html`<form class="card filters" role="search" aria-label="Find tasks" onSubmit=${find}>
    <div class="field wide"><label for=${id}>Find a task by its id or the beginning of it, or tasks by a text</label><input id=${id} type="search" name="find" defaultValue=${text} autocomplete="off" spellcheck=${false} data-first /></div>
    <button class="primary">Find</button></form>`;
}
export const IS_BEGINNING = /^[0-9a-f]{4}[0-9a-f-]{0,32}$/i;

// `options`: [[value, label], …]; the first one is usually ["", "all"].
export function ChoiceFilter({ name, label, options }) {
  const id = useId();
  const present = route.value.query.get(name) ?? "";
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} name=${name} value=${present} onChange=${(event) => setQuery({ [name]: event.target.value, cursor: null, from: null })}>
      ${options.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === present}>${text}</option>`)}
    </select></div>`;
}

// Several values at once, as buttons that are on or off, with their `counts` if there are any.
export function SetFilter({ name, label, values, counts }) {
  const selected = new Set(route.value.query.getAll(name));
  const toggle = (value) => {
    selected.has(value) ? selected.delete(value) : selected.add(value);
    setQuery({ [name]: [...selected], cursor: null, from: null });
  };
  return html`<fieldset class="set"><legend>${label}</legend><div>
    ${values.map((value) => html`<button key=${value} type="button" class="chip" aria-pressed=${selected.has(value) ? "true" : "false"}
      onClick=${() => toggle(value)}>${value}${counts && html` <span class="number">${compact(counts[value])}</span>`}</button>`)}
  </div></fieldset>`;
}

// --- Actions, messages and dialogs -----------------------------------------------------------------------------------

const messages = signal([]);

export function toast(text, tone = "good") {
  const message = { text, tone, id: crypto.getRandomValues(new Uint32Array(1))[0] };
  messages.value = [...messages.value.slice(-3), message];
  const close = () => (messages.value = messages.value.filter((other) => other !== message));
  if (tone !== "bad") setTimeout(close, 6000);
  message.close = close;
}

export const Messages = () => html`<div class="toasts" aria-live="polite">
  ${messages.value.map((message) => html`<div key=${message.id} class="toast ${message.tone}" role=${message.tone === "bad" ? "alert" : "status"}>
    <span>${message.text}</span><button type="button" class="plain" aria-label="Close the message" onClick=${message.close}>×</button></div>`)}
</div>`;

// A button that does `onClick`, is busy meanwhile, and shows what went wrong. With `confirm` (see `ask`) it asks first; `onClick`
// gets the value of the question's field.
export function Button({ onClick, confirm, tone = "", disabled, success, children, class: more = "", ...rest }) {
  const isBusy = useSignal(false);
  const run = async () => {
    if (isBusy.value) return;
    const answer = confirm ? await ask(confirm) : {};
    if (!answer) return;
    isBusy.value = true;
    try {
      await onClick(answer.value);
      if (success) toast(success);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "bad");
    } finally {
      isBusy.value = false;
    }
  };
  return html`<button type="button" class="${tone} ${more}" aria-busy=${isBusy.value ? "true" : "false"} disabled=${disabled} onClick=${run} ...${rest}>${children}</button>`;
}

const asked = signal(null);

// Ask before an action: { title, body, action, tone, field }. Returns null for no, else { value }, which the field has:
// { label, help, read(text), say(value) }. `read` raises an Error for a text that is no value.
export function ask(question) {
  return new Promise((resolve) => (asked.value = { tone: "danger", ...question, resolve }));
}

export const Questions = () => asked.value && html`<${Question} question=${asked.value} />`;

function Question({ question: { title, body, action, tone, field, resolve } }) {
  const [text, problem, id] = [useSignal(""), useSignal(null), useId()];
  const answer = (value) => {
    asked.value = null;
    resolve(value);
  };
  const agree = (event) => {
    event.preventDefault();
    try {
      answer({ value: field?.read(text.value) });
    } catch (error) {
      problem.value = error.message;
    }
  };
  const enter = (event) => {
    text.value = event.target.value;
    problem.value = null;
  };
  const said = () => {
    try {
      return field.say(field.read(text.value));
    } catch {
      return field.help;
    }
  };
  return html`<${Dialog} title=${title} onClose=${() => answer(null)}><form onSubmit=${agree} noValidate>
    <div class="dialog-body"><p>${body}</p>${field && html`<div class="field"><label for=${id}>${field.label}</label>
      <input id=${id} value=${text.value} autocomplete="off" spellcheck=${false} onInput=${enter} aria-invalid=${problem.value ? "true" : undefined} aria-describedby="${id}-help" />
      <p id="${id}-help" class=${problem.value ? "problem" : "help"} role="status">${problem.value ?? said()}</p></div>`}</div>
    <footer><button type="button" onClick=${() => answer(null)}>Close</button><button class=${tone}>${action}</button></footer></form><//>`;
}

// The end of a pause, for `ask`.
export const UNTIL = {
  label: "Until",
  help: `Empty: until you resume. Or the end: ${MOMENTS}`,
  read: (text) => {
    if (!text.trim()) return null;
    const at = momentOf(text);
    if (!at) throw new Error(`“${text}” is no time. Write ${MOMENTS}.`);
    if (new Date(at) <= new Date()) throw new Error(`${exact(at)} has passed. Write a time to come.`);
    return at;
  },
  say: (at) => (at ? `It ends ${exact(at)}.` : UNTIL.help),
};

// A dialog over the page; Escape closes it, and the focus returns to where it was.
export function Dialog({ title, onClose, wide = false, children }) {
  const element = useRef();
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel}>
    <header><h2 id=${id}>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>×</button></header>
    ${children}
  </dialog>`;
}
