// Two tasks beside each other: how they ran, and where their payloads and results differ.
import { get } from "../api.js";
import { canReadAll } from "../auth.js";
import { between, count, duration, plural, preview, shortId } from "../format.js";
import { stringify } from "../json.js";
import { html, useId, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { route, setQuery } from "../router.js";
import { Ago, Copy, Loaded, Section, Status, TaskLink } from "../ui.js";
import { fromTagged, isArray, short } from "./arrays.js";
import { summary } from "./values.js";

const MAX_ROWS = 200;
const isPart = (value) => value !== null && typeof value === "object" && [Object, Array].includes(value.constructor) && summary(value) === undefined;

// Collect the paths at which two values differ, [path, one, other], and count the equal ones.
function compare(one, other, path, rows) {
  if (isPart(one) && isPart(other) && Array.isArray(one) === Array.isArray(other)) {
    for (const key of new Set([...Object.keys(one), ...Object.keys(other)])) compare(one[key], other[key], path ? `${path}.${key}` : key, rows);
  } else if (textOf(one) === textOf(other)) rows.equal += 1;
  else rows.push([path, one, other]);
  return rows;
}

const textOf = (value) => (value === undefined ? undefined : stringify(value));

// How far two numbers, or two arrays of the same shape, are apart.
function distance(one, other) {
  const [from, to] = [one, other].map((value) => (isArray(value) && typeof value.data === "string" ? fromTagged(value) : value));
  if (typeof from?.valueOf() === "number" && typeof to?.valueOf() === "number") {
    const change = to - from;
    return `${change > 0 ? "+" : ""}${short(change)}${Number(from) ? `, ${change > 0 ? "+" : ""}${short((100 * change) / Math.abs(from))} %` : ""}`;
  }
  if (!from?.data || !to?.data || String(from.shape) !== String(to.shape)) return "";
  let greatest = 0;
  for (let at = 0; at < from.data.length; at += 1) greatest = Math.max(greatest, Math.abs(Number(to.data[at]) - Number(from.data[at])) || 0);
  return `at most ${short(greatest)} apart`;
}

const shown = (value) => (value === undefined ? html`<span class="none">–</span>` : html`<code class="value">${summary(value) ?? textOf(value)}</code>`);

function Differences({ title, one, other }) {
  const rows = compare(one, other, "", Object.assign([], { equal: 0 }));
  const isSame = rows.length === 0;
  return html`<h3>${title}</h3><p class="help">${isSame ? "No difference." : `${plural(rows.length, "difference")}, ${plural(rows.equal, "equal value")}.`}${rows.length > MAX_ROWS ? ` The first ${MAX_ROWS}:` : ""}</p>
    ${!isSame && html`<div class="scroll" tabindex="0" role="region" aria-label=${`Differences of the ${title.toLowerCase()}`}><table class="differences">
      <thead><tr><th scope="col">Field</th><th scope="col">This task</th><th scope="col">The other</th><th scope="col">Difference</th></tr></thead>
      <tbody>${rows.slice(0, MAX_ROWS).map(([path, from, to]) => html`<tr key=${path}><th scope="row">${path || "value"}</th><td>${shown(from)}</td><td>${shown(to)}</td><td>${distance(from, to)}</td></tr>`)}</tbody></table></div>`}`;
}

const FACTS = [
  ["Status", (task) => html`<${Status} status=${task.status} />`],
  ["Created", (task) => html`<${Ago} at=${task.created_at} />`],
  ["Waited", (task) => duration(between(task.created_at, task.started_at))],
  ["Ran", (task) => duration(between(task.started_at, task.completed_at))],
  ["Attempts", (task) => count(task.attempts)],
  ["Error", (task) => task.error && html`<span class="error">${task.error}</span>`],
  ["Uploaded result", ({ stored_result: stored }) => stored && `${stored.content_type}, ${count(stored.size)} bytes`],
];

// The section of a task's page that compares it with the task `with` in the address.
export function Comparison({ task, onClose }) {
  const id = useId();
  const other = route.value.query.get("with");
  const query = { job: task.job_name, room: canReadAll.value ? null : task.room_id, limit: 50 };
  const earlier = usePoll((abort) => get("/tasks", query, { signal: abort }), [query], null);
  const state = usePoll((abort) => other ? get(`/tasks/${encodeURIComponent(other)}`, {}, { signal: abort }) : null, [other], other ? 10 : null);
  // An id, or an address that ends with it.
  const entered = useSignal(other ?? "");
  const enter = ({ target }) => {
    entered.value = /[0-9a-f-]{36}/.exec(target.value)?.[0] ?? target.value.trim();
    setQuery({ with: entered.value });
  };
  const names = (earlier.data?.items ?? []).filter((item) => item.id !== task.id);
  return html`<${Section} title="Compare" actions=${html`<${Copy} text=${location.href} label="Copy link" /><button type="button" class="small" onClick=${onClose}>Close</button>`}>
    <div class="form two"><div class="field"><label for=${id}>With one of the last tasks of the job</label>
        <select id=${id} value=${names.some((item) => item.id === other) ? other : ""} onChange=${enter}><option value="">choose …</option>
          ${names.map((item) => html`<option key=${item.id} value=${item.id} selected=${item.id === other}>${preview(item.payload_preview) || shortId(item.id)} (${item.status}, ${duration(between(item.created_at, new Date()))} ago)</option>`)}</select></div>
      <div class="field"><label for=${`${id}-other`}>Or its id, or its address</label>
        <input id=${`${id}-other`} value=${entered.value} autocomplete="off" spellcheck=${false}
          onInput=${(event) => (entered.value = event.target.value)} onChange=${enter} /></div></div>
    ${other && html`<${Loaded} state=${state} missing=${html`No such task: ${other}.`}>${(second) => second && html`
      <div class="scroll" tabindex="0" role="region" aria-label="Both tasks"><table class="differences"><thead><tr><td></td><th scope="col">This task</th><th scope="col"><${TaskLink} id=${second.id} /></th></tr></thead>
        <tbody>${FACTS.map(([name, render]) => [name, render(task), render(second)]).filter(([, from, to]) => from || to)
          .map(([name, from, to]) => html`<tr key=${name}><th scope="row">${name}</th><td>${from || "–"}</td><td>${to || "–"}</td></tr>`)}</tbody></table></div>
      <${Differences} title="Payloads" one=${task.payload} other=${second.payload} />
      <${Differences} title="Results" one=${task.result ?? undefined} other=${second.result ?? undefined} />`}<//>`}<//>`;
}
