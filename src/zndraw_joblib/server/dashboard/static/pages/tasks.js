// All tasks that match the filter in the address, newest first, and actions on the chosen or on all of them.
import { act, get } from "../api.js";
import { canOperate, canReadAll, canWriteRoom, me, ownRoom } from "../auth.js";
import { count, plural, shortId } from "../format.js";
import { html, signal, useId, useMemo, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { href, route } from "../router.js";
import { Ago, Between, Button, Dialog, Empty, Failure, Loaded, Page, Paging, Status, Table, TASK_COLUMNS, toast, WorkerLink } from "../ui.js";
import { filterOf, isFiltered, keyOf, NAMES, TaskFilters } from "./task_filter.js";

const LIMIT = 50;
// The actions: which statuses they change, and what to call them. Callers who are no operators may do two of them.
const ACTIONS = {
  retry: { label: "Retry", statuses: ["failed", "cancelled"], text: "Failed and cancelled tasks return to their queues.", done: "put back into the queue" },
  cancel: { label: "Cancel", statuses: ["pending", "claimed", "running"], text: "Tasks that have not ended are cancelled; their workers stop.", done: "cancelled" },
  release: { label: "Release", statuses: ["claimed", "running"], text: "Workers lose the tasks that they hold; the tasks return to their queues.", done: "released", isOperators: true },
  purge: { label: "Purge", statuses: ["completed", "failed", "cancelled"], text: "Ended tasks are deleted with their logs and results. This cannot be undone.", done: "deleted", skipped: "ended too recently; purge them later", isOperators: true, deletes: true },
  retarget: { label: "Retarget", statuses: ["pending"], text: "Waiting tasks of earlier versions of the job get the current version, if their payloads match its schema.", done: "moved to the current version", skipped: "do not match its schema, or had changed meanwhile", isOperators: true, needsJob: true },
};

// An action that cannot be undone is confirmed by typing the number of its tasks: a purge always, others above this number.
const MAX_UNTYPED = 100;
const needsTyping = (action, size) => size > 0 && action !== "retry" && action !== "retarget" && (action === "purge" || size > MAX_UNTYPED);
const isNumber = (text, size) => text.replaceAll(/[\s,]/g, "") === String(size);

const permitted = () => Object.entries(ACTIONS).filter(([, action]) => canOperate.value || (canWriteRoom.value && !action.isOperators));

export function Tasks() {
  const { query } = route.value;
  const key = keyOf(query);
  const cursor = query.get("cursor");
  const isMissingRoom = !canReadAll.value && !query.get("room") && !ownRoom.value;
  const selection = useMemo(() => signal(new Set()), [key, cursor]);
  const bulk = useSignal(null);
  const state = usePoll((abort) => isMissingRoom ? { items: [], next: null } : get("/tasks", { ...filterOf(query), cursor, limit: LIMIT }, { signal: abort }),
    [key, cursor, isMissingRoom], cursor ? 15 : 3);
  const rooms = filterOf(query).room;
  const isCounted = !isFiltered(query, NAMES.filter((name) => name !== "room" && name !== "status"));
  const counts = usePoll((abort) => isCounted && !isMissingRoom ? get("/tasks/counts", { room: rooms }, { signal: abort }) : null, [JSON.stringify(rooms), isCounted, isMissingRoom], 5);
  const actions = permitted().filter(([, action]) => !action.needsJob || filterOf(query).job);
  return html`<${Page} title="Tasks" actions=${actions.length > 0 && !isMissingRoom && html`<span class="help">All that match:</span>
      ${actions.map(([name, action]) => html`<button key=${name} type="button" class=${action.deletes ? "small deletes" : "small"} onClick=${() => (bulk.value = name)}>${action.label} …</button>`)}`}>
    <${TaskFilters} counts=${isCounted ? counts.data : null} />
    ${isMissingRoom ? html`<${Empty}>Name your room above. You see the tasks of rooms that you may read.<//>` : html`
      <${Loaded} state=${state}>${({ items, next }) => html`
        ${selection.value.size > 0 && html`<${Chosen} tasks=${items.filter((task) => selection.value.has(task.id))} selection=${selection} reload=${state.reload} />`}
        <${Table} caption="Tasks" columns=${columnsOf(items)} rows=${items} selection=${actions.length ? selection : null}
          rowLabel=${(task) => `task ${shortId(task.id)}`} empty=${nothing(query, next, cursor)} />
        <${Paging} next=${next} />`}<//>`}
    ${bulk.value && html`<${Bulk} action=${bulk.value} filter=${filterOf(query)} onClose=${() => (bulk.value = null)} onDone=${state.reload} />`}<//>`;
}

function nothing(query, next, cursor) {
  if (next) return "No match among the newest tasks. The next part searches older ones.";
  if (cursor) return "No further task matches.";
  return isFiltered(query) ? "No task matches this filter." : "There are no tasks yet. Submit one with the SDK, the command line or on a job's page.";
}

function columnsOf(items) {
  return [
    TASK_COLUMNS.id,
    { name: "status", label: "Status", render: (task) => html`<${Status} status=${task.status} />${task.status === "pending" && task.run_at && html` <span class="help">due <${Ago} at=${task.run_at} /></span>`}` },
    TASK_COLUMNS.job, TASK_COLUMNS.room, TASK_COLUMNS.created,
    { name: "ran", label: "Ran", class: "number", render: (task) => task.started_at ? html`<${Between} from=${task.started_at} to=${task.completed_at} />` : html`<span class="none">–</span>` },
    { name: "attempts", label: "Attempts", class: "number", render: (task) => task.attempts || html`<span class="none">–</span>` },
    { name: "worker", label: "Worker", render: (task) => html`<${WorkerLink} id=${task.worker_id} />` },
    items.some((task) => task.error || task.error_code) && {
      name: "error", label: "Error", class: "text",
      render: (task) => task.error && html`<span title=${`${task.error_code}: ${task.error}`}>${task.error}</span>`,
    },
  ].filter(Boolean);
}

// What may be done with a task: of operators each action, of others those on tasks that they submitted.
const isAllowed = (task, action) => ACTIONS[action].statuses.includes(task.status) && (canOperate.value || task.created_by === me.value.id);

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
        confirm=${{ title: `${label} ${plural(size, "task")}?`, body: text, action: label, tone: name === "retry" ? "primary" : "danger" }}>${label} ${size}<//>`;
    })}
    <button type="button" class="plain small" onClick=${() => (selection.value = new Set())}>Choose none</button></div>`;
}

// Shows how many tasks an action would change, and does it after a confirmation.
function Bulk({ action, filter, onClose, onDone }) {
  const { label, text, done } = ACTIONS[action];
  // The filter as it was when the dialog opened: the token of the preview confirms this one.
  const filters = useMemo(() => filter, []);
  const preview = usePoll((signal) => act("POST", "/tasks/bulk/preview", { action, filter: filters }, { signal }), [action], null);
  const error = useSignal(null);
  const typed = useSignal("");
  const size = preview.data?.count ?? 0;
  const isConfirmed = !needsTyping(action, size) || isNumber(typed.value, size);
  const typedId = useId();
  const run = async () => {
    try {
      const { affected, skipped } = await act("POST", "/tasks/bulk", { action, filter: filters, token: preview.data.token });
      toast(`${plural(affected, "task")} ${done}${skipped ? `, ${count(skipped)} skipped: they ${ACTIONS[action].skipped ?? "had changed meanwhile"}` : ""}.`);
      onClose();
      onDone();
    } catch (problem) {
      error.value = problem;
    }
  };
  const conditions = Object.entries(filters).map(([name, value]) => `${name} ${[value].flat().join(" or ")}`);
  return html`<${Dialog} title=${`${label} all that match`} onClose=${onClose} wide>
    <div class="dialog-body">
      <p>${text}</p>
      <p class="help">${conditions.length ? `Filter: ${conditions.join(", ")}` : "No filter: all tasks of all rooms."}</p>
      ${error.value ? html`<${Failure} error=${error.value} />` : html`<${Loaded} state=${preview}>${(answer) => html`
        <p class="counted"><strong>${plural(answer.count, "task")}</strong> ${answer.is_complete ? "" : `(the newest ${count(answer.limit)}; there are more)`}</p>
        <ul class="examples">${answer.examples.slice(0, 5).map((task) => html`<li key=${task.id}><a class="id" href=${href(["tasks", task.id])}>${shortId(task.id)}</a>
          <${Status} status=${task.status} /> <span class="name">${task.job_name}</span> <${Ago} at=${task.created_at} /></li>`)}</ul>
        ${needsTyping(action, size) && html`<div class="field"><label for=${typedId}>To ${action} ${size === 1 ? "it" : "them"}, type the number of tasks: ${count(size)}</label>
          <input id=${typedId} inputmode="numeric" autocomplete="off" value=${typed.value} onInput=${(event) => (typed.value = event.target.value)} /></div>`}`}<//>`}
    </div>
    <footer><button type="button" onClick=${onClose}>Close</button>
      <${Button} tone=${action === "retry" || action === "retarget" ? "primary" : "danger"} disabled=${!size || Boolean(error.value) || !isConfirmed} onClick=${run}>
        ${label} ${preview.data ? plural(size, "task") : ""}<//></footer><//>`;
}
