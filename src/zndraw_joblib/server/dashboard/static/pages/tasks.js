// All tasks that match the filter in the address, newest first, and actions on the chosen or on all of them.
import { act, get } from "../api.js";
import { canOperate, canReadAll, canWriteRoom, me, ownRoom } from "../auth.js";
import { count, partsOf, plural, preview, shortId } from "../format.js";
import { html, signal, useId, useMemo, useSignal } from "../lib.js";
import { usePoll, useParts } from "../live.js";
import { href, route, setQuery } from "../router.js";
import { Ago, Between, Button, Clip, Dialog, Empty, Failure, Loaded, Loading, Menu, Page, Status, STATUSES, Table, Tags, TASK_COLUMNS, toast, WorkerLink } from "../ui.js";
import { Faults, filterWords, isFiltered, NAMES, NoMatch, TaskFilters, useFilter } from "./task_filter.js";

const LIMIT = 50;
// The actions: which statuses they change, and what to call them. Callers who are no operators may do two of them.
const ACTIONS = {
  retry: { label: "Retry", statuses: ["failed", "cancelled"], text: "Failed and cancelled tasks return to their queues.", done: "put back into the queue" },
  runNow: { label: "Run now", statuses: ["pending"], text: "Scheduled tasks enter their queues now.", done: "put into the queue", isChosen: true },
  cancel: { label: "Cancel", statuses: ["pending", "claimed", "running"], text: "Pending tasks will never run. Of tasks that are claimed or running, the workers are told to stop; what they report afterwards is refused.", done: "cancelled", hasTree: true },
  release: { label: "Release", statuses: ["claimed", "running"], text: "Workers lose the tasks that they hold; the tasks return to their queues.", done: "released", isOperators: true },
  purge: { label: "Purge", statuses: ["completed", "failed", "cancelled"], text: "Ended tasks are deleted with their logs and results. This cannot be undone.", done: "deleted", skipped: "ended in the last two minutes, or a group or step that has not ended needs them", isOperators: true, deletes: true },
  retarget: { label: "Retarget", statuses: ["pending"], text: "Waiting tasks of earlier versions of the job get the current version, if their payloads match its schema.", done: "moved to the current version", skipped: "do not match its schema, or had changed meanwhile", isOperators: true, needsJob: true },
};

// An action that cannot be undone is confirmed by typing the number of its tasks: a purge always, others above this number.
const MAX_UNTYPED = 100;
const needsTyping = (action, size) => size > 0 && action !== "retry" && action !== "retarget" && (action === "purge" || size > MAX_UNTYPED);
const isNumber = (text, size) => text.replaceAll(/[\s,]/g, "") === String(size);

const permitted = () => Object.entries(ACTIONS).filter(([, action]) => canOperate.value || (canWriteRoom.value && !action.isOperators));

export function Tasks() {
  const { query } = route.value;
  const { filter, faults, isReady, key } = useFilter(query);
  const cursor = query.get("cursor");
  const isMissingRoom = !canReadAll.value && !query.get("room") && !ownRoom.value;
  const isUsable = isReady && !faults.length && !isMissingRoom;
  const selection = useMemo(() => signal(new Set()), [key, cursor]);
  const bulk = useSignal(null);
  const load = (from, abort) => isUsable ? get("/tasks", { ...filter(), cursor: from, limit: LIMIT }, { signal: abort }) : { items: [], next: null };
  const state = usePoll((abort) => load(cursor, abort), [key, cursor, isUsable], cursor || query.get("text") ? 15 : 3);
  // A search for something rare reads on through older parts by itself.
  const parts = useParts(state, load, LIMIT, [key, cursor, isUsable]);
  const { room: rooms, job: jobs } = filter();
  const isCounted = !isFiltered(query, NAMES.filter((name) => name !== "room" && name !== "status"));
  const counts = usePoll((abort) => isCounted && isUsable ? get("/tasks/counts", { room: rooms }, { signal: abort }) : null, [JSON.stringify(rooms), isCounted, isUsable], 5);
  const actions = permitted().filter(([, action]) => !action.isChosen && (!action.needsJob || jobs));
  return html`<${Page} title="Tasks" actions=${actions.length > 0 && isUsable && html`<${Menu} label="All that match">
      ${actions.map(([name, action]) => html`<button key=${name} type="button" class=${action.deletes ? "small deletes" : "small"} onClick=${() => (bulk.value = name)}>${action.label} …</button>`)}<//>`}>
    <${TaskFilters} counts=${isCounted && counts.data} />
    <${Faults} faults=${faults} />
    ${isMissingRoom ? html`<${Empty}>Name your room above. You see the tasks of rooms that you may read.<//>` : !isReady ? html`<${Loading} />` : !faults.length && html`
      <${Loaded} state=${state}>${() => html`
        ${selection.value.size > 0 && html`<${Chosen} tasks=${parts.items.filter((task) => selection.value.has(task.id))} selection=${selection} reload=${state.reload} />`}
        <${Reading} parts=${parts} />
        ${(parts.items.length > 0 || !parts.isReading) && html`<${Table} caption="Tasks" class="dense cards" columns=${COLUMNS} rows=${parts.items} selection=${actions.length ? selection : null}
          rowLabel=${(task) => `task ${shortId(task.id)}`} empty=${nothing(query, parts.next, cursor, jobs)} />`}
        <${Position} parts=${parts} total=${isCounted && counts.data && totalOf(counts.data, query)} />`}<//>`}
    ${bulk.value && html`<${Bulk} action=${bulk.value} filter=${filter()} onClose=${() => (bulk.value = null)} onDone=${state.reload} />`}<//>`;
}

const totalOf = (counts, query) => (query.getAll("status").length ? query.getAll("status") : STATUSES).reduce((sum, status) => sum + (counts[status] ?? 0), 0);

// How far a search that reads on by itself has come.
function Reading({ parts: { items, isReading, isStopped, next, stop, goOn } }) {
  if (!isReading && !(isStopped && next)) return null;
  return html`<div class="choice" role="status"><strong>${isReading ? "Searching older tasks …" : "The search was stopped."}</strong>
    <span>${plural(items.length, "match", "matches")} so far</span>
    <button type="button" class="small" onClick=${isReading ? stop : goOn}>${isReading ? "Stop" : "Go on"}</button></div>`;
}

// The cursors of the parts that were shown before, so that one can go back to them.
const before = new Map();

function Position({ parts: { items, next, isReading }, total }) {
  const { query } = route.value;
  const [cursor, from] = [query.get("cursor"), Number(query.get("from")) || 1];
  const to = from + items.length - 1;
  const go = (target, first) => setQuery({ cursor: target, from: first > 1 ? String(first) : null }, { keep: true });
  const older = () => {
    before.set(next, { cursor, from });
    go(next, to + 1);
  };
  const newer = () => {
    const last = before.get(cursor) ?? { cursor: null, from: 1 };
    go(last.cursor, last.from);
  };
  if (!items.length && !cursor) return null;
  return html`<nav class="paging" aria-label="Parts of the list">
    ${cursor && html`<button type="button" onClick=${newer}>${before.has(cursor) ? "Newer" : "Newest"}</button>`}
    <span class="help">${items.length > 0 && html`${count(from)}–${count(to)}${total ? ` of ${count(Math.max(total, to))}` : next ? "" : ` of ${count(to)}`}`}</span>
    ${next && !isReading && html`<button type="button" onClick=${older}>Older</button>`}</nav>`;
}

function nothing(query, next, cursor, jobs) {
  if (next) return "No match among the tasks that were searched.";
  if (cursor) return "No further task matches.";
  return isFiltered(query) ? html`<${NoMatch} jobs=${jobs} />` : "There are no tasks yet. Submit one with the SDK, the command line or on a job's page.";
}

// A task by its job and the beginning of its payload; the link leads to it.
export const What = ({ task }) => html`<a class="what" href=${href(["tasks", task.id])} title=${`${task.job_name} · ${task.id}`}><b>${partsOf(task.job_name).name}</b> <span class="preview">${preview(task.payload_preview)}</span></a>`;

const dimmed = (text) => html`<span class="none">${text}</span>`;

// What a task is at: its progress, its error, when it is due, or how long it ran.
export function Detail({ task }) {
  const attempt = task.attempts > 1 && html`<span class="none">attempt ${task.attempts} · </span>`;
  if (task.error && ["failed", "pending"].includes(task.status)) return html`<${Clip} class="error" text=${task.error} before=${attempt} />`;
  if (task.status === "pending") return task.run_at ? html`<span class="clip none">due <${Ago} at=${task.run_at} /></span>` : dimmed("");
  if (task.status === "running" && task.progress) {
    const { current, total, message } = task.progress;
    const part = total ? Math.min(1, Number(current ?? 0) / Number(total)) : null;
    const bar = part !== null && html`<progress max="1" value=${part} aria-label="Progress"></progress> ${Math.floor(part * 100)} %`;
    return html`<${Clip} class="step" text=${message ?? ""} before=${html`${bar} ${attempt}`} />`;
  }
  if (task.status === "claimed" && !task.started_at) return html`<span class="clip none">${attempt}not started yet</span>`;
  return task.started_at ? html`<span class="clip none">${attempt}${task.completed_at ? "ran" : "runs for"} <${Between} from=${task.started_at} to=${task.completed_at} /></span>` : dimmed("");
}

export const COLUMNS = [
  TASK_COLUMNS.status,
  { name: "what", label: "Task", render: (task) => task.tags ? html`<div class="tagged"><${What} task=${task} /><${Tags} tags=${task.tags} /></div>` : html`<${What} task=${task} />` },
  { name: "detail", label: "Progress or error", render: (task) => html`<${Detail} task=${task} />` },
  { name: "room", label: "Room", render: (task) => html`<a class="clip" href=${href(["rooms", task.room_id])} title=${task.room_id}>${task.room_id}</a>` },
  { name: "age", label: "Age", class: "number", render: (task) => html`<${Ago} at=${task.created_at} isShort />` },
  { name: "worker", label: "Worker", render: (task) => html`<${WorkerLink} id=${task.worker_id} name=${task.worker_name ?? null} />` },
];

// What may be done with a task: of operators each action, of others those on tasks that they submitted.
const isAllowed = (task, action) => ACTIONS[action].statuses.includes(task.status) && (action !== "runNow" || task.run_at) && (canOperate.value || task.created_by === me.value.id);

export const apply = {
  retry: (id) => act("POST", `/tasks/${id}/retry`, {}),
  runNow: (id) => act("POST", `/tasks/${id}/run-now`, {}),
  release: (id) => act("POST", `/tasks/${id}/release`, {}),
  cancel: (id) => act("PATCH", `/tasks/${id}`, { status: "cancelled" }),
};

function Chosen({ tasks, selection, reload }) {
  const run = (name) => async () => {
    const allowed = tasks.filter((task) => isAllowed(task, name));
    const results = await Promise.allSettled(allowed.map((task) => apply[name](task.id)));
    const failed = results.filter((result) => result.status === "rejected");
    const changed = allowed.length - failed.length;
    if (changed) toast(`${plural(changed, "task")} ${ACTIONS[name].done}.`);
    if (failed.length) toast(`${plural(failed.length, "task")} not changed: ${failed[0].reason.message}`, "bad");
    selection.value = new Set();
    reload();
  };
  return html`<div class="choice" role="region" aria-label="Chosen tasks"><strong>${count(selection.value.size)} chosen</strong>
    ${Object.keys(apply).filter((name) => permitted().some(([action]) => action === name)).map((name) => {
      const size = tasks.filter((task) => isAllowed(task, name)).length;
      const { label, text } = ACTIONS[name];
      return html`<${Button} key=${name} class="small" disabled=${!size} onClick=${run(name)}
        confirm=${{ title: `${label} ${plural(size, "task")}?`, body: text, action: `${label} ${plural(size, "task")}`, tone: ["retry", "runNow"].includes(name) ? "primary" : "danger" }}>${label} ${count(size)}<//>`;
    })}
    <button type="button" class="plain small" onClick=${() => (selection.value = new Set())}>Choose none</button></div>`;
}

// Shows how many tasks an action would change, and does it after a confirmation.
export function Bulk({ action, filter, onClose, onDone }) {
  const { label, text, done, hasTree } = ACTIONS[action];
  // The filter as it was when the dialog opened: the token of the preview confirms this one.
  const filters = useMemo(() => filter, []);
  const tree = useSignal(false);
  const request = { action, filter: filters, ...(tree.value && { tree: true }) };
  // The token confirms the action with or without the tasks below: each change of the choice reads a new preview.
  const preview = usePoll((signal) => act("POST", "/tasks/bulk/preview", request, { signal }), [action, tree.value], null);
  const error = useSignal(null);
  const typed = useSignal("");
  const size = preview.data ? preview.data.count + preview.data.below : 0;
  const isConfirmed = !needsTyping(action, size) || isNumber(typed.value, size);
  const typedId = useId();
  const run = async () => {
    try {
      const { affected, skipped } = await act("POST", "/tasks/bulk", { ...request, token: preview.data.token });
      toast(`${plural(affected, "task")} ${done}${skipped ? `, ${count(skipped)} skipped: they ${ACTIONS[action].skipped ?? "had changed meanwhile"}` : ""}.`);
      onClose();
      onDone();
    } catch (problem) {
      error.value = problem;
    }
  };
  const chooseTree = (event) => {
    tree.value = event.target.checked;
    error.value = null;
  };
  return html`<${Dialog} title=${`${label} all that match`} onClose=${onClose} wide>
    <div class="dialog-body">
      <p>${text}</p>
      <p class="help">Filter: ${filterWords(filters)}</p>
      ${hasTree && html`<label class="check"><input type="checkbox" checked=${tree.value} onChange=${chooseTree} /> ${label} the tasks below them too</label>`}
      ${error.value ? html`<${Failure} error=${error.value} />` : html`<${Loaded} state=${preview}>${(answer) => html`
        <p class="counted"><strong>${plural(answer.count, "task")}</strong> ${answer.below > 0 && `and ${plural(answer.below, "task")} below `}${answer.is_complete ? "" : `(the ${answer.action === "retry" ? "oldest" : "newest"} ${count(answer.limit)}; there are more)`}</p>
        <ul class="examples">${answer.examples.slice(0, 5).map((task) => html`<li key=${task.id}>
          <div><${Status} status=${task.status} /> <${What} task=${task} /></div>
          <div class="help"><a class="id" href=${href(["tasks", task.id])}>${shortId(task.id)}</a> in room ${task.room_id}, created <${Ago} at=${task.created_at} /></div>
          ${task.error && html`<${Clip} class="error" text=${task.error} />`}</li>`)}</ul>
        ${needsTyping(action, size) && html`<div class="field"><label for=${typedId}>To ${action} ${size === 1 ? "it" : "them"}, type the number of tasks: ${count(size)}</label>
          <input id=${typedId} inputmode="numeric" autocomplete="off" value=${typed.value} onInput=${(event) => (typed.value = event.target.value)} /></div>`}`}<//>`}
    </div>
    <footer><button type="button" onClick=${onClose}>Close</button>
      <${Button} tone=${action === "retry" || action === "retarget" ? "primary" : "danger"} disabled=${!size || Boolean(error.value) || !isConfirmed} onClick=${run}>
        ${label} ${preview.data ? plural(size, "task") : ""}<//></footer><//>`;
}
