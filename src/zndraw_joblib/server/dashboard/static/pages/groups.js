// The groups of a room, and one group: how far it is, what failed, what follows its end, and its tasks.
import { act, get } from "../api.js";
import { canOperate, canReadAll, canWriteRoom, ownRoom } from "../auth.js";
import { compact, count, plural, shortId } from "../format.js";
import { html, useRef, useSignal } from "../lib.js";
import { usePoll, useStream } from "../live.js";
import { href } from "../router.js";
import { Ago, Badge, Button, Clip, Copy, Facts, Figure, Filters, JobLink, Json, ListPage, Loaded, Page, Parts, RoomLink, runningLabel, Section, STATUSES, Table, TaskLink, TextFilter } from "../ui.js";
import { Bulk, COLUMNS } from "./tasks.js";

const LIMIT = 50;
const endedOf = ({ counts }) => counts.completed + counts.failed + counts.cancelled;
// Rounded down, so that a group with open tasks never shows 100 %.
const percent = (group) => (group.progress === null ? "–" : `${Math.floor(group.progress * 100)} %`);
const nameOf = (group) => group.name ?? `Group ${shortId(group.id)}`;

function State({ group: { ended_at: ended, sealed, counts } }) {
  if (ended && counts.failed) return html`<${Badge} tone="bad">ended with failures<//>`;
  if (ended && counts.cancelled) return html`<${Badge} tone="warn">ended, ${count(counts.cancelled)} cancelled<//>`;
  if (ended) return html`<${Badge} tone="good">ended<//>`;
  return sealed ? html`<${Badge} tone="busy">running<//>` : html`<${Badge} title="More tasks may be added; it ends after it is sealed">open<//>`;
}

// The share of each status in a line; the numbers are its label.
function Shares({ group: { counts, total, id } }) {
  const order = ["completed", "failed", "cancelled", "running", "claimed", "pending"];
  const words = order.filter((status) => counts[status]).map((status) => `${count(counts[status])} ${status}`).join(", ") || "no tasks";
  let from = 0;
  return html`<svg class="shares-bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label=${words}><title>${words}</title>
    ${order.filter((status) => counts[status]).map((status) => {
      const [x, width] = [from, (counts[status] / total) * 100];
      from += width;
      return html`<rect key=${id + status} class="is-${status}" x=${x} width=${width} y="0" height="1" />`;
    })}</svg>`;
}

const LIST = [
  { name: "name", label: "Group", render: (group) => html`<a class="name" href=${href(["groups", group.id])} title=${group.id}>${nameOf(group)}</a>` },
  { name: "state", label: "State", render: (group) => html`<${State} group=${group} />` },
  { name: "progress", label: "Progress", class: "wide-bar", render: (group) => html`<${Shares} group=${group} /> <span class="help">${percent(group)} of ${plural(group.total, "task")}</span>` },
  { name: "failed", label: "Failed", class: "number", render: (group) => html`<span class=${group.counts.failed ? "error" : "none"}>${count(group.counts.failed)}</span>` },
  { name: "room", label: "Room", render: (group) => html`<${RoomLink} id=${group.room} />` },
  { name: "created", label: "Created", render: (group) => html`<${Ago} at=${group.created_at} />` },
  { name: "ended", label: "Ended", render: (group) => html`<${Ago} at=${group.ended_at} />` },
];

export const Groups = () => html`<${ListPage} title="Groups" path="/groups" filters=${["room"]} laterSeconds=${30}
  needsRoom="You see the groups of rooms that you may read." columns=${LIST}
  form=${html`<${Filters} label="Filter groups"><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} isFirst /><//>`}
  empty="There are no groups. Make one with queue.group(), 'zndraw-joblib submit --from FILE --group NAME' or POST /groups."
  emptyIfFiltered="This room has no groups." />`;

// The group as the stream tells it; its failures and the task of its end are read when they have changed.
function useGroup(id) {
  const state = usePoll((abort) => get(`/groups/${encodeURIComponent(id)}`, {}, { signal: abort }), [id], 10);
  const live = useSignal(null);
  const isEnded = Boolean(state.data?.ended_at);
  const failed = useRef(null);
  const stream = useStream(state.data && !isEnded ? `/groups/${encodeURIComponent(id)}/events` : null, (event, data) => {
    const { sealed, total, counts, progress } = data;
    if (counts) live.value = { sealed, total, counts, progress };
    if (event === "end" || (failed.current !== null && counts?.failed !== failed.current)) state.reload();
    failed.current = counts?.failed ?? null;
  });
  const group = state.data && { ...state.data, ...(isEnded ? {} : live.value) };
  return { state, group, isLive: stream.isOpen, isEnded };
}

export function Group({ segments: [, id] }) {
  const { state, group, isLive, isEnded } = useGroup(id);
  const filter = { room: [group?.room], group: id };
  const tasks = usePoll((abort) => (group ? get("/tasks", { room: group.room, group: id, limit: LIMIT }, { signal: abort }) : null), [id, group?.room], isEnded ? 15 : 3);
  const hasMore = Boolean(group && !isEnded && group.total > LIMIT);
  // The newest tasks of a large group are the last to run.
  const held = usePoll((abort) => (hasMore ? get("/tasks", { room: group.room, group: id, status: ["claimed", "running"], limit: LIMIT }, { signal: abort }) : null), [id, hasMore], 3);
  const bulk = useSignal(null);
  const reload = () => {
    state.reload();
    held.reload();
    tasks.reload();
  };
  return html`<${Page} title=${group ? nameOf(group) : "Group"} actions=${group && html`
      ${!isEnded && html`<${Badge} tone=${isLive ? "good" : "warn"}>${isLive ? "live" : "connecting"}<//>`}
      <${Actions} group=${group} act=${(name) => (bulk.value = name)} reload=${reload} />
      <a class="button" href=${href("tasks", { room: group.room, group: id })}>Search its tasks</a>`}>
    <${Loaded} state=${state} missing="There is no such group. A group is deleted a week after its end, once its tasks are deleted.">${() => html`<${Parts}>
      <${Summary} group=${group} />
      <${Figures} group=${group} />
      <${Failures} group=${group} />
      ${hasMore && held.data?.items.length > 0 && html`<${Section} title="Running" class="wide">
        <${Table} caption="Running tasks" class="dense cards" columns=${COLUMNS.filter((column) => column.name !== "room")} rows=${held.data.items} /><//>`}
      <${Section} title=${group.total > LIMIT ? `Newest of ${plural(group.total, "task")}` : "Tasks"} class="wide"><${Loaded} state=${tasks}>${(found) => found && html`
        <${Table} caption="Tasks" class="dense cards" columns=${COLUMNS.filter((column) => column.name !== "room")} rows=${found.items} empty="No task was added yet." />
        ${found.next && html`<p><a href=${href("tasks", { room: group.room, group: id })}>All ${plural(group.total, "task")}</a></p>`}`}<//><//><//>
      ${bulk.value && html`<${Bulk} action=${bulk.value} filter=${filter} onClose=${() => (bulk.value = null)} onDone=${reload} />`}`}<//><//>`;
}

function Summary({ group }) {
  const ended = endedOf(group);
  return html`<section class="card progress" aria-label="Progress">
    <div><strong>${percent(group)}</strong><span>${count(ended)} of ${plural(group.total, "task")} ended</span></div>
    <${Shares} group=${group} />
    <p class="legend">${STATUSES.filter((status) => group.counts[status]).map((status) => html`<span key=${status} class=${`key ${status}`}>${status}</span>`)}</p>
    <${Facts} items=${[
      ["State", html`<${State} group=${group} />`],
      ["Room", html`<${RoomLink} id=${group.room} />`],
      ["Created by", group.created_by],
      ["Made by task", group.parent && html`<${TaskLink} id=${group.parent} />`],
      ["Created", html`<${Ago} at=${group.created_at} />`],
      ["Ended", group.ended_at && html`<${Ago} at=${group.ended_at} />`],
      ["Waiting tasks fail", !group.ended_at && group.expires_at && html`<${Ago} at=${group.expires_at} />`],
      ["Id", html`<span class="id">${group.id}</span> <${Copy} text=${group.id} />`, "wide"],
    ]} />
    ${group.on_end && html`<${OnEnd} group=${group} />`}</section>`;
}

const AT_THE_END = {
  waiting: "is submitted when all tasks have ended",
  submitted: "was submitted",
  skipped: "was not submitted, because not all tasks have completed",
  failed: "could not be submitted",
};

function OnEnd({ group: { on_end: { job, payload, when }, on_end_state: state, on_end_task: task, error } }) {
  const text = state === "waiting" && when === "completed" ? "is submitted if all tasks complete" : AT_THE_END[state];
  return html`<div class="why"><h3>At the end</h3>
    <p><${JobLink} name=${job} /> ${text}${task && html`: task <${TaskLink} id=${task} />`}.</p>
    ${error && html`<p class="error">${error}</p>`}
    ${Object.keys(payload ?? {}).length > 0 && html`<details><summary>Payload</summary><${Json} value=${payload} label="Payload of the task at the end" /></details>`}</div>`;
}

function Figures({ group: { id, room, counts } }) {
  const to = (status) => href("tasks", { room, group: id, status });
  return html`<section class="figures" aria-label="Counts">
    <${Figure} label="pending" value=${compact(counts.pending)} to=${to("pending")} />
    <${Figure} label=${runningLabel(counts)} value=${compact(counts.running)} tone=${counts.running ? "busy" : ""} to=${to(counts.claimed ? ["claimed", "running"] : "running")} />
    <${Figure} label="completed" value=${compact(counts.completed)} to=${to("completed")} />
    <${Figure} label="failed" value=${compact(counts.failed)} tone=${counts.failed ? "bad" : ""} to=${to("failed")} />
    <${Figure} label="cancelled" value=${compact(counts.cancelled)} to=${to("cancelled")} /></section>`;
}

function Failures({ group: { id, room, failures, counts } }) {
  if (!failures.length) return null;
  const columns = [
    { name: "id", label: "Task", render: (failure) => html`<${TaskLink} id=${failure.id} />` },
    { name: "job", label: "Job", render: (failure) => html`<${JobLink} name=${failure.job_name} />` },
    { name: "error", label: "Error", class: "text", render: (failure) => html`<${Clip} class="error" text=${failure.error ?? failure.error_code ?? ""} />` },
  ];
  const title = counts.failed > failures.length ? `First failures of ${count(counts.failed)}` : "Failures";
  return html`<${Section} title=${title} class="wide" actions=${html`<a href=${href("tasks", { room, group: id, status: "failed" })}>All failed tasks</a>`}>
    <${Table} caption="Failures" columns=${columns} rows=${failures} /><//>`;
}

// Writers of the room cancel and retry what they submitted, operators all.
function Actions({ group, act: choose, reload }) {
  if (!canOperate.value && !canWriteRoom.value) return null;
  const { pending, claimed, running, failed, cancelled } = group.counts;
  const seal = () => act("PATCH", `/groups/${group.id}`, { sealed: true }).then(reload);
  return html`
    ${failed + cancelled > 0 && html`<button type="button" class="primary" onClick=${() => choose("retry")}>Retry ${count(failed + cancelled)} …</button>`}
    ${pending + claimed + running > 0 && html`<button type="button" class="danger" onClick=${() => choose("cancel")}>Cancel ${count(pending + claimed + running)} …</button>`}
    ${!group.sealed && html`<${Button} onClick=${seal} success="The group is sealed."
      confirm=${{ title: "Seal the group?", body: "No more tasks can be added. It ends when all its tasks have ended, at once if it has none that are open.", action: "Seal the group", tone: "primary" }}>Seal<//>`}`;
}
