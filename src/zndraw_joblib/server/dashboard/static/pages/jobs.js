// All jobs with their counts; for a reader of one room, the jobs that the room sees.
import { act, get } from "../api.js";
import { canOperate, canReadAll, ownRoom } from "../auth.js";
import { between, compact, count, exact, plural } from "../format.js";
import { html } from "../lib.js";
import { usePoll } from "../live.js";
import { href, route } from "../router.js";
import { Ago, Badge, Button, ChoiceFilter, Empty, Filters, isNarrow, JobLink, ListPage, Loaded, Page, Paging, Table, TextFilter, UNTIL } from "../ui.js";
import { jobPath } from "./submit.js";

export function Jobs() {
  return canReadAll.value ? html`<${AllJobs} />` : html`<${RoomJobs} />`;
}

// By what jobs are sorted: those with nothing to count come last.
const SORTS = {
  name: ["Name", (job) => job.full_name],
  queued: ["Queued", (job) => job.queued],
  oldest: ["Oldest waiting", (job) => job.oldest_waiting_at && -new Date(job.oldest_waiting_at)],
  running: ["Running", (job) => job.counts.running],
  completed: ["Completed", (job) => job.counts.completed],
  failed: ["Failed", (job) => job.counts.failed],
  workers: ["Workers", (job) => job.workers],
};

function sorted(jobs, sort) {
  const valueOf = SORTS[sort.replace("-", "")]?.[1];
  if (!valueOf) return jobs;
  const [order, lowest] = [sort[0] === "-" ? -1 : 1, -Infinity];
  const [isLess, isMore] = [(a, b) => (valueOf(a) ?? lowest) < (valueOf(b) ?? lowest), (a, b) => (valueOf(a) ?? lowest) > (valueOf(b) ?? lowest)];
  return [...jobs].sort((a, b) => order * (isMore(a, b) - isLess(a, b)) || (a.full_name < b.full_name ? -1 : 1));
}

const MAX_SORTED = 200;

function AllJobs() {
  const sort = route.value.query.get("sort") ?? "";
  const orders = Object.entries(SORTS).flatMap(([name, [label]]) => (name === "name" ? [["", "name"], ["-name", "name, last first"]] : [[`-${name}`, `${label.toLowerCase()}, most first`]]));
  return html`<${ListPage} title="Jobs" path="/jobs" filters=${["room", "category", "paused"]} switches=${["deleted"]} isWhole=${Boolean(sort)}
  form=${html`<${Filters} label="Filter jobs">
    <${TextFilter} name="room" label="Room" isFirst /><${TextFilter} name="category" label="Category" />
    <${ChoiceFilter} name="paused" label="State" options=${[["", "any"], ["true", "paused"], ["false", "not paused"]]} />
    <${ChoiceFilter} name="deleted" label="Deleted jobs" options=${[["", "hidden"], ["true", "shown"]]} />
    ${isNarrow.value && html`<${ChoiceFilter} name="sort" label="Sort by" options=${orders} />`}<//>`}>
  ${(items, reload, isFiltered) => html`<${JobTable} jobs=${sorted(items, sort).slice(0, sort ? MAX_SORTED : items.length)} reload=${reload} isSortable
    empty=${isFiltered ? "No job matches this filter." : "There are no jobs yet. A worker registers them when it starts."} />
    ${sort && items.length > MAX_SORTED && html`<p class="help">Shown: ${count(MAX_SORTED)} of ${plural(items.length, "job")}. Narrow the filter to find others.</p>`}`}<//>`;
}

// Pause and resume; `job` has the state, `reload` reads it again.
export function PauseButton({ job, reload, small = true }) {
  if (!canOperate.value || job.deleted) return null;
  const change = (action) => (until) => act("POST", `/rooms/${encodeURIComponent(job.room_id)}/jobs/${jobPath(job.full_name)}/${action}`, until ? { until } : undefined).then(reload);
  const size = small ? "small" : "";
  if (job.paused) return html`<${Button} class=${size} tone="primary" onClick=${change("resume")} success="Workers claim its tasks again." aria-label=${`Resume ${job.full_name}`}>Resume<//>`;
  return html`<${Button} class=${size} onClick=${change("pause")} success="The job is paused." aria-label=${`Pause ${job.full_name}`}
    confirm=${{ title: `Pause ${job.name}?`, body: "No worker claims its tasks until the pause ends. Tasks that are claimed or running continue.", action: "Pause the job", field: UNTIL }}>Pause<//>`;
}

export function ForgetButton({ job, reload }) {
  const isUnused = job.workers === 0 && !job.queued && !job.scheduled;
  if (!canOperate.value || job.deleted || !isUnused || job.room_id === "@internal") return null;
  const forget = () => act("DELETE", `/rooms/${encodeURIComponent(job.room_id)}/jobs/${jobPath(job.full_name)}`).then(reload);
  return html`<${Button} onClick=${forget} success="The job is forgotten." aria-label=${`Forget ${job.full_name}`}
    confirm=${{ title: `Forget ${job.name}?`, body: "Submits of its tasks are refused until a worker registers it again. Its tasks stay.", action: "Forget the job" }}>Forget<//>`;
}

const None = () => html`<span class="none">–</span>`;
// A count that leads to its tasks.
export const Count = ({ size, to, tone = "" }) => size ? html`<a class=${tone} href=${to} title=${count(size)}>${compact(size)}</a>` : html`<span class="none">0</span>`;

// The tasks that workers have claimed and not started.
export const Claimed = ({ counts }) => counts.claimed > 0 && html` <span class="help">+${compact(counts.claimed)} claimed</span>`;

export function JobState({ job }) {
  if (job.deleted) return html`<${Badge} title="No worker serves it. A worker that registers it restores it.">deleted<//>`;
  if (job.paused) return html`<${Badge} tone="warn" title=${job.paused_until ? `Until ${exact(job.paused_until)}` : "Until it is resumed"}>${job.paused_until ? html`paused, ends <${Ago} at=${job.paused_until} />` : "paused"}<//>`;
  if (job.workers === 0 && job.room_id !== "@internal") return html`<${Badge} tone=${job.queued ? "bad" : "warn"}>no workers<//>`;
  return html`<${Badge} tone="good">active<//>`;
}

// A wait of more than ten minutes stands out.
export function Oldest({ at }) {
  if (!at) return html`<${None} />`;
  const seconds = between(at, new Date().toISOString());
  return html`<span class=${seconds > 600 ? "warn" : ""}><${Ago} at=${at} /></span>`;
}

// `room` limits the links of the counts to the tasks of a room, whose overview has no waiting times of single jobs.
export function JobTable({ jobs, reload, room, isSortable, empty }) {
  const to = (job, status) => href("tasks", { job: job.full_name, status, room });
  const columns = [
    { name: "job", label: "Job", sortBy: "name", isText: true, render: (job) => html`<${JobLink} name=${job.full_name} />` },
    { name: "state", label: "State", render: (job) => html`<${JobState} job=${job} />` },
    { name: "waiting", sortBy: "queued", label: room ? "Pending" : "Queued", class: "number", render: (job) => html`<${Count} size=${room ? job.counts.pending : job.queued} to=${to(job, "pending")} />${job.scheduled > 0 && html` <span class="help">${compact(job.scheduled)} scheduled</span>`}` },
    !room && { name: "oldest", sortBy: "oldest", label: "Oldest waiting", render: (job) => html`<${Oldest} at=${job.oldest_waiting_at} />` },
    { name: "running", sortBy: "running", label: "Running", class: "number", render: (job) => html`<${Count} size=${job.counts.running} to=${to(job, "running")} tone="busy" /><${Claimed} counts=${job.counts} />${job.max_in_flight && html` <span class="help" title="running and claimed together">limit ${count(job.max_in_flight)}</span>`}` },
    { name: "completed", sortBy: "completed", label: "Completed", class: "number", render: (job) => html`<${Count} size=${job.counts.completed} to=${to(job, "completed")} />` },
    { name: "failed", sortBy: "failed", label: "Failed", class: "number", render: (job) => html`<${Count} size=${job.counts.failed} to=${to(job, "failed")} tone="error" />` },
    { name: "workers", sortBy: "workers", label: "Workers", class: "number", render: (job) => html`<span title=${plural(job.slots, "slot")}>${count(job.workers)}</span>` },
    canOperate.value && reload && { name: "do", label: "Actions", render: (job) => html`<${PauseButton} job=${job} reload=${reload} />` },
  ].filter(Boolean).map((column) => (isSortable ? column : { ...column, sortBy: null }));
  return html`<${Table} caption="Jobs" columns=${columns} rows=${jobs} rowKey=${(job) => job.full_name} empty=${empty} />`;
}

const LIMIT = 100;

function RoomJobs() {
  const room = ownRoom.value;
  const offset = Number(route.value.query.get("cursor") ?? 0) || 0;
  const state = usePoll((signal) => room ? get(`/rooms/${encodeURIComponent(room)}/jobs`, { limit: LIMIT, offset }, { signal }) : { items: [], total: 0 }, [room, offset], 10);
  const columns = [
    { name: "job", label: "Job", render: (job) => html`<${JobLink} name=${job.full_name} />` },
    { name: "category", label: "Category", render: (job) => job.category },
    { name: "state", label: "State", render: (job) => html`<${JobState} job=${{ ...job, room_id: job.full_name.split(":")[0], workers: job.workers.length }} />` },
    { name: "workers", label: "Workers", class: "number", render: (job) => count(job.workers.length) },
  ];
  return html`<${Page} title="Jobs">${room
    ? html`<${Loaded} state=${state}>${({ items, total }) => html`
        <${Table} caption="Jobs" columns=${columns} rows=${items} rowKey=${(job) => job.full_name} empty="The room sees no job. A worker registers them when it starts." />
        <${Paging} next=${offset + items.length < total && items.length ? String(offset + items.length) : null} />`}<//>`
    : html`<${Empty}>Name your room above. You see the jobs of rooms that you may read.<//>`}<//>`;
}
