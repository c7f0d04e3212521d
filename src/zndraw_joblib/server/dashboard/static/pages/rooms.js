// Rooms: how they share what runs, and what waits in each.
import { act, get, readParts } from "../api.js";
import { canOperate, canReadAll, ownRoom } from "../auth.js";
import { compact, count, plural } from "../format.js";
import { html } from "../lib.js";
import { usePoll } from "../live.js";
import { href, route } from "../router.js";
import { Ago, Badge, Between, Button, Empty, Figure, Filters, Loaded, Page, Paging, RoomLink, runningLabel, Section, Table, TASK_COLUMNS, TextFilter, UNTIL } from "../ui.js";
import { Claimed, Count, JobTable, Oldest } from "./jobs.js";
import { Findings } from "./overview.js";
import { matchesOf, roomNames } from "./suggestions.js";

const MAX_SHOWN = 200;
const MAX_BARS = 10;

export function Rooms() {
  if (canReadAll.value) return html`<${AllRooms} />`;
  if (ownRoom.value) return html`<${Room} segments=${["rooms", ownRoom.value]} />`;
  return html`<${Page} title="Rooms"><${Empty}>Name your room above. You see the rooms that you may read.<//><//>`;
}

// Pause and resume a room, or all rooms if `room` is null; `pauses` are those that concern it.
function PauseRoomButton({ room, pauses, reload }) {
  if (!canOperate.value) return null;
  const path = room === null ? "" : `/rooms/${encodeURIComponent(room)}`;
  const change = (action) => (until) => act("POST", `${path}/${action}`, until ? { until } : undefined).then(reload);
  const [what, short] = room === null ? ["all rooms", "all rooms"] : [`room ${room}`, "room"];
  if (pauses.some((pause) => pause.room === room)) {
    return html`<${Button} tone="primary" onClick=${change("resume")} success="Workers claim its tasks again." aria-label=${`Resume ${what}`}>Resume ${short}<//>`;
  }
  return html`<${Button} onClick=${change("pause")} success="It is paused." aria-label=${`Pause ${what}`}
    confirm=${{ title: `Pause ${what}?`, body: "No worker claims their tasks, and no schedule submits one, until the pause ends. Tasks that are claimed or running continue.", action: `Pause ${what}`, field: UNTIL }}>Pause ${short}<//>`;
}

const Paused = ({ pause }) => pause && html` <${Badge} tone="warn" title=${`By ${pause.paused_by}`}>${pause.until ? html`paused, ends <${Ago} at=${pause.until} />` : "paused"}<//>`;

const heldIn = (room) => room.counts.claimed + room.counts.running;

function AllRooms() {
  const { query } = route.value;
  const cursor = query.get("cursor");
  const text = (query.get("text") ?? "").toLowerCase();
  const state = usePoll((signal) => readParts("/rooms", { cursor }, { signal }), [cursor]); // those with the largest shares come first here
  const paused = usePoll((signal) => get("/pauses", { limit: MAX_SHOWN }, { signal }), []);
  const pauses = paused.data?.items ?? [];
  const pauseOf = (id) => pauses.find((pause) => pause.room === id);
  const columns = [
    { name: "room", label: "Room", render: (room) => html`<${RoomLink} id=${room.id} /><${Paused} pause=${pauseOf(room.id)} />` },
    { name: "jobs", label: "Own jobs", class: "number", render: (room) => count(room.jobs) },
    { name: "waiting", label: "Pending", class: "number", render: (room) => html`<${Count} size=${room.counts.pending} to=${href("tasks", { room: room.id, status: "pending" })} />` },
    { name: "oldest", label: "Oldest waiting", render: (room) => html`<${Oldest} at=${room.oldest_waiting_at} />` },
    { name: "running", label: "Running", class: "number", render: (room) => html`<${Count} size=${room.counts.running} to=${href("tasks", { room: room.id, status: "running" })} tone="busy" /><${Claimed} counts=${room.counts} />` },
    { name: "share", label: "Share of running", class: "number", render: (room) => percent(room.share) },
    { name: "completed", label: "Completed", class: "number", render: (room) => html`<${Count} size=${room.counts.completed} to=${href("tasks", { room: room.id, status: "completed" })} />` },
    { name: "failed", label: "Failed", class: "number", render: (room) => html`<${Count} size=${room.counts.failed} to=${href("tasks", { room: room.id, status: "failed" })} tone="error" />` },
  ];
  const button = paused.data && html`<${PauseRoomButton} room=${null} pauses=${pauses} reload=${paused.reload} />`;
  return html`<${Page} title="Rooms" actions=${html`<${Paused} pause=${pauseOf(null)} />${button}`}><${Loaded} state=${state}>${({ items, next }) => {
    const busy = (room) => heldIn(room) * 1e9 + room.counts.pending;
    const sorted = [...items].sort((a, b) => busy(b) - busy(a) || a.id.localeCompare(b.id));
    const matches = sorted.filter((room) => room.id.toLowerCase().includes(text));
    return html`<${Fairness} rooms=${sorted} />
      <div class="card"><${Filters} label="Filter rooms"><${TextFilter} name="text" label="Room" isFirst /><//></div>
      <${Table} caption="Rooms" columns=${columns} rows=${matches.slice(0, MAX_SHOWN)} empty=${text ? "No room matches this filter." : "No room has tasks or jobs yet."} />
      ${matches.length > MAX_SHOWN && html`<p class="help">Shown: ${count(MAX_SHOWN)} of ${plural(matches.length, "room")}. Narrow the filter to find others.</p>`}
      <${Paging} next=${next} />`;
  }}<//><//>`;
}

const percent = (share) => share ? `${share < 0.01 ? "< 1" : Math.round(share * 100)} %` : html`<span class="none">0 %</span>`;

// The share of what runs beside the share of what waits: with fair claims, rooms that wait get like shares.
function Fairness({ rooms }) {
  const queued = rooms.reduce((sum, room) => sum + room.counts.pending, 0);
  const active = rooms.filter((room) => heldIn(room) || room.counts.pending);
  const waiting = active.filter((room) => room.oldest_waiting_at);
  const oldest = waiting.reduce((first, room) => (!first || room.oldest_waiting_at < first.oldest_waiting_at ? room : first), null);
  return html`<${Section} title="Shares of the rooms" actions=${oldest && html`<span class="help">Longest wait: <${RoomLink} id=${oldest.id} />, <${Ago} at=${oldest.oldest_waiting_at} /></span>`}>
    ${active.length ? html`<ul class="bars shares">${active.slice(0, MAX_BARS).map((room) => {
      const waits = room.counts.pending;
      return html`<li key=${room.id}><${RoomLink} id=${room.id} />
        <span class="help">${compact(room.counts.running)} running${room.counts.claimed > 0 && ` · ${compact(room.counts.claimed)} claimed ahead`} · ${compact(waits)} pending</span>
        <meter class="held" min="0" max="1" value=${room.share} aria-label=${`${room.id}: share of running tasks`} title=${`${Math.round(room.share * 100)} % of running tasks`}></meter>
        <meter class="waits" min="0" max="1" value=${queued ? waits / queued : 0} aria-label=${`${room.id}: share of pending tasks`} title=${`${queued ? Math.round((waits / queued) * 100) : 0} % of pending tasks`}></meter></li>`;
    })}</ul><p class="legend"><span class="key running">share of running tasks</span><span class="key waits">share of pending tasks</span>
      ${active.length > MAX_BARS && html`<span>${plural(active.length - MAX_BARS, "more room")} below</span>`}</p>`
      : html`<${Empty}>No room has running or pending tasks.<//>`}<//>`;
}

// Workers are in a room by its jobs.
const isNothing = (room) => Object.values(room.counts).every((size) => !size) && !room.jobs.some((job) => job.room_id === room.room);

function NoRoom({ id }) {
  const names = usePoll(() => roomNames(), [id], null).data ?? [];
  const { matches, near } = matchesOf(id, names.filter(([name]) => name !== id));
  const others = [...matches, ...near].slice(0, 5);
  return html`<${Empty}>No task, job or worker is in a room ${id}.${others.length > 0 && html` Did you mean: ${others.map(([name]) => html`<${RoomLink} key=${name} id=${name} /> `)}`}<//>`;
}

export function Room({ segments }) {
  const id = segments[1];
  const state = usePoll((signal) => get(`/rooms/${encodeURIComponent(id)}/overview`, {}, { signal }), [id]);
  const tasks = usePoll((signal) => get("/tasks", { room: id, limit: 10 }, { signal }), [id]);
  const button = state.data && html`<${PauseRoomButton} room=${id} pauses=${state.data.pauses} reload=${state.reload} />`;
  return html`<${Page} title=${`Room ${id}`} actions=${html`<a class="button" href=${href("tasks", { room: id })}>All its tasks</a><a class="button" href=${href("groups", { room: id })}>Groups</a>${button}`}>
    <${Loaded} state=${state}>${(room) => isNothing(room) ? html`<${NoRoom} id=${id} />` : html`
      <${Findings} findings=${room.findings} />
      <${Figures} room=${room} />
      <${Section} title="Jobs" class="wide"><${JobTable} jobs=${room.jobs} reload=${state.reload} room=${id} empty="The room has no jobs of its own." /><//>
      <${Section} title="Newest tasks" class="wide"><${Loaded} state=${tasks}>${({ items }) => html`<${Newest} tasks=${items} />`}<//><//>`}<//><//>`;
}

function Figures({ room }) {
  const { counts } = room;
  const to = (status) => href("tasks", { room: room.room, status });
  return html`<section class="figures" aria-label="Counts">
    <${Figure} label="pending" value=${compact(counts.pending)} to=${to("pending")} />
    <${Figure} label="oldest waiting" value=${room.oldest_waiting_at ? html`<${Between} from=${room.oldest_waiting_at} />` : "–"} />
    <${Figure} label=${runningLabel(counts)} value=${compact(counts.running)} tone=${counts.running ? "busy" : ""} to=${to(counts.claimed ? ["claimed", "running"] : "running")} />
    <${Figure} label="completed" value=${compact(counts.completed)} to=${to("completed")} />
    <${Figure} label="failed" value=${compact(counts.failed)} tone=${counts.failed ? "bad" : ""} to=${to("failed")} />
    <${Figure} label="cancelled" value=${compact(counts.cancelled)} to=${to("cancelled")} /></section>`;
}

function Newest({ tasks }) {
  const columns = [
    TASK_COLUMNS.id, TASK_COLUMNS.status, TASK_COLUMNS.job,
    { name: "submitter", label: "Submitter", render: (task) => task.created_by },
    TASK_COLUMNS.created,
  ];
  return html`<${Table} caption="Newest tasks" columns=${columns} rows=${tasks} empty="The room has no tasks yet." />`;
}
