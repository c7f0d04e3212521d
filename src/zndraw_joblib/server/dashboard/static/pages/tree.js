// The tasks below a task: how far they are, and a list of its children, whose own children open.
import { act, get } from "../api.js";
import { canOperate, config, me } from "../auth.js";
import { count, plural } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll, useParts } from "../live.js";
import { Button, Loading, Section, Status, STATUSES, Tags } from "../ui.js";
import { Detail, What } from "./tasks.js";
import { isOver } from "./timeline.js";

const PART = 20;

// Of the first task of a tree all tasks below it, of others their children.
const linkOf = (task) => (task.root ? { parent: task.id } : { root: task.id });

async function load(task, abort) {
  const read = (path, query) => get(path, { room: task.room_id, ...query }, { signal: abort });
  const [below, children] = await Promise.all([read("/tasks/counts", linkOf(task)), read("/tasks", { parent: task.id, limit: PART })]);
  return { ...children, below };
}

export function Tree({ task }) {
  const state = usePoll((abort) => load(task, abort), [task.id], 5);
  if (!state.data?.items.length) return null;
  const { below } = state.data;
  const total = STATUSES.reduce((sum, status) => sum + below[status], 0);
  const ended = STATUSES.filter(isOver).reduce((sum, status) => sum + below[status], 0);
  const words = STATUSES.filter((status) => below[status]).map((status) => `${count(below[status])} ${status}`).join(", ");
  const mayCancel = !config.value.read_only && ended < total && (canOperate.value || task.created_by === me.value.id);
  const cancel = () => act("PATCH", `/tasks/${task.id}`, { status: "cancelled", tree: true }).then(state.reload);
  return html`<${Section} title=${task.root ? "Children" : "Tasks below"} actions=${mayCancel && html`<${Button} onClick=${cancel} success="The tree is cancelled."
      confirm=${{ title: "Cancel the tree?", body: "This task, if it has not ended, and all tasks below it end as cancelled. Workers that run some are told to stop.", action: "Cancel the tree" }}>Cancel tree<//>`}>
    <div class="progress"><div><span>${below.is_complete ? "" : "Of the newest "}${plural(total, "task")}: ${words}</span></div>
      <progress max=${total} value=${ended} aria-label="Tasks that have ended"></progress></div>
    <${Children} task=${task} first=${state} /><//>`;
}

// The children of a task, newest first, some at a time.
function Children({ task, first }) {
  const size = useSignal(PART);
  const read = (cursor, abort) => get("/tasks", { room: task.room_id, parent: task.id, cursor, limit: PART }, { signal: abort });
  const parts = useParts(first, read, size.value, [task.id]);
  return html`<ul class="tree">${parts.items.map((child) => html`<${Child} key=${child.id} task=${child} />`)}</ul>
    ${parts.next && html`<button type="button" class="small" disabled=${parts.isReading} onClick=${() => (size.value = parts.items.length + PART)}>${parts.isReading ? "Reading …" : "Older ones"}</button>`}`;
}

function Child({ task }) {
  const isOpen = useSignal(false);
  const line = html`<${Status} status=${task.status} waitsFor=${task.waits_for} /> <${What} task=${task} /> <${Tags} tags=${task.tags} /> <${Detail} task=${task} />`;
  if (!task.has_children) return html`<li><div class="child">${line}</div></li>`;
  return html`<li><div class="child"><button type="button" class="plain small" aria-expanded=${isOpen.value ? "true" : "false"} onClick=${() => (isOpen.value = !isOpen.value)}>${isOpen.value ? "Hide" : "Show"} children</button> ${line}</div>
    ${isOpen.value && html`<${Below} task=${task} />`}</li>`;
}

function Below({ task }) {
  const state = usePoll((abort) => get("/tasks", { room: task.room_id, parent: task.id, limit: PART }, { signal: abort }), [task.id], 10);
  return state.data === null ? html`<${Loading} />` : html`<${Children} task=${task} first=${state} />`;
}
