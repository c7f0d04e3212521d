// The workers: who they are, what they run, and how to drain them.
import { act, get } from "../api.js";
import { canOperate, canReadAll, config, me, ownRoom } from "../auth.js";
import { count, labelsText, plural } from "../format.js";
import { html } from "../lib.js";
import { usePoll } from "../live.js";
import { go, href, route } from "../router.js";
import { Ago, Badge, Between, Button, ChoiceFilter, Copy, Empty, Facts, Filters, JobLink, Loaded, Page, Section, Table, TASK_COLUMNS, TextFilter, WorkerLink } from "../ui.js";

const PART = 500;
const MAX_WORKERS = 2000;
const MAX_SHOWN = 200;
const TONES = { active: "good", silent: "bad", draining: "warn" };
const TITLES = { active: "It sends heartbeats", silent: "It has sent no heartbeat for two intervals", draining: "It finishes its tasks and leaves" };

const WorkerState = ({ worker }) => html`<${Badge} tone=${TONES[worker.state]} title=${TITLES[worker.state]}>${worker.state ?? "unknown"}<//>`;

// Return all workers that the caller may see, at most `MAX_WORKERS`, and how many there are.
export async function readWorkers(signal) {
  if (!canReadAll.value && !ownRoom.value) return { items: [], total: 0 };
  const path = canReadAll.value ? "/workers" : `/rooms/${encodeURIComponent(ownRoom.value)}/workers`;
  const items = new Map();
  for (let offset = 0; offset < MAX_WORKERS; offset += PART) {
    const part = await get(path, { limit: PART, offset }, { signal });
    for (const worker of part.items) items.set(worker.id, worker);
    if (part.items.length < PART) return { items: [...items.values()], total: items.size };
    if (offset + PART >= MAX_WORKERS) return { items: [...items.values()], total: part.total };
  }
  return null;
}

const textOf = (worker) => [worker.id, worker.name, worker.host, worker.version, worker.owner_id, ...worker.jobs].join(" ").toLowerCase();

export function Workers() {
  const { query } = route.value;
  const [stateFilter, text] = [query.get("state"), (query.get("text") ?? "").toLowerCase()];
  const state = usePoll(readWorkers, [ownRoom.value]);
  const isMissingRoom = !canReadAll.value && !ownRoom.value;
  return html`<${Page} title="Workers">
    <div class="card"><${Filters} label="Filter workers"><${TextFilter} name="text" label="Name, host, id or job" isFirst />
      <${ChoiceFilter} name="state" label="State" options=${[["", "any"], ...Object.keys(TONES).map((name) => [name, name])]} /><//></div>
    ${isMissingRoom ? html`<${Empty}>Name your room above. You see the workers of rooms that you may read.<//>` : html`
      <${Loaded} state=${state}>${({ items, total }) => {
        const matches = items.filter((worker) => (!stateFilter || worker.state === stateFilter) && (!text || textOf(worker).includes(text)));
        return html`<${WorkerTable} workers=${matches.slice(0, MAX_SHOWN)} reload=${state.reload} hasJobs
            empty=${items.length ? "No worker matches this filter." : "There are no workers. Start one with `zndraw-joblib worker`, or with the SDK."} />
          ${(matches.length > MAX_SHOWN || total > items.length) && html`<p class="help">Shown: ${count(Math.min(matches.length, MAX_SHOWN))} of ${plural(total, "worker")}. Narrow the filter to find others.</p>`}`;
      }}<//>`}<//>`;
}

const isOwn = (worker) => !config.value.read_only && (canOperate.value || (worker.owner_id && worker.owner_id === me.value?.id));

function DrainButton({ worker, reload, small = true }) {
  if (!isOwn(worker) || worker.state === "draining") return null;
  const name = worker.name ?? worker.id.slice(0, 8);
  return html`<${Button} class=${small ? "small" : ""} aria-label=${`Drain ${name}`} success="The worker finishes its tasks and leaves."
    onClick=${() => act("POST", `/workers/${worker.id}/drain`).then(reload)}
    confirm=${{ title: `Drain ${name}?`, body: `It claims no more tasks, finishes ${worker.held ? plural(worker.held, "task") : "what it holds"}, and leaves. It does not come back by itself.`, action: "Drain the worker" }}>Drain<//>`;
}

function Held({ worker }) {
  if (worker.held === null || worker.held === undefined) return html`<span class="none">–</span>`;
  const slots = worker.slots ?? worker.max_tasks;
  const claimed = worker.held - worker.running;
  return html`${count(worker.running)}${slots && html` <span class="help">of ${count(slots)}</span>`}${claimed > 0 && html` <span class="help">+${count(claimed)} claimed</span>`}`;
}

const Text = ({ value }) => value ?? html`<span class="none">–</span>`;

function JobsOf({ worker }) {
  if (!worker.jobs.length) return html`<span class="help">${plural(worker.job_count, "job")}</span>`;
  const more = worker.job_count - 2;
  return html`${worker.jobs.slice(0, 2).map((name) => html`<div key=${name}><${JobLink} name=${name} /></div>`)}${more > 0 && html`<span class="help">and ${count(more)} more</span>`}`;
}

export function WorkerTable({ workers, reload, hasJobs = false, empty = "There are no workers." }) {
  const acts = workers.some(isOwn);
  const columns = [
    { name: "name", label: "Worker", render: (worker) => html`<${WorkerLink} id=${worker.id} name=${worker.name ?? null} />${worker.name && html` <span class="id help">${worker.id.slice(0, 8)}</span>`}` },
    { name: "state", label: "State", render: (worker) => html`<${WorkerState} worker=${worker} />` },
    { name: "held", label: "Running", class: "number", render: (worker) => html`<${Held} worker=${worker} />` },
    { name: "host", label: "Host", render: (worker) => html`<${Text} value=${worker.host} />${worker.pid && html` <span class="help">pid ${worker.pid}</span>`}` },
    { name: "version", label: "Version", render: (worker) => html`<${Text} value=${worker.version} />` },
    { name: "heartbeat", label: "Heartbeat", render: (worker) => html`<${Ago} at=${worker.last_heartbeat} />` },
    hasJobs && { name: "jobs", label: "Jobs", render: (worker) => html`<${JobsOf} worker=${worker} />` },
    acts && { name: "do", label: "Actions", render: (worker) => html`<${DrainButton} worker=${worker} reload=${reload} />` },
  ].filter(Boolean);
  return html`<${Table} caption="Workers" columns=${columns} rows=${workers} empty=${empty} />`;
}

export function Worker({ segments }) {
  const id = segments[1];
  const state = usePoll((signal) => get(`/workers/${encodeURIComponent(id)}`, {}, { signal }), [id]);
  const present = state.data;
  const remove = () => act("DELETE", `/workers/${id}`).then(() => go("workers"));
  return html`<${Page} title=${present?.name ? `Worker ${present.name}` : `Worker ${id.slice(0, 8)}`} actions=${present && html`
      <${DrainButton} worker=${present} reload=${state.reload} small=${false} />
      ${isOwn(present) && html`<${Button} onClick=${remove} success="The worker is removed."
        confirm=${{ title: "Remove the worker?", body: "For a worker that is gone for good. It loses its tasks: they are retried or fail, as their jobs' policies say.", action: "Remove the worker" }}>Remove<//>`}`}>
    <${Loaded} state=${state} missing=${`There is no worker ${id}: it has left or was removed.`}>${(worker) => html`
      <section class="card" aria-label="Summary"><${Facts} items=${[
        ["State", html`<${WorkerState} worker=${worker} />`],
        ["Host", worker.host],
        ["Labels", worker.labels && labelsText(worker.labels)],
        ["Process", worker.pid && String(worker.pid)],
        ["Version", worker.version],
        ["Running", html`<${Held} worker=${worker} />`],
        ["May hold", worker.max_tasks && plural(worker.max_tasks, "task")],
        ["Heartbeat", html`<${Ago} at=${worker.last_heartbeat} />`],
        ["Allocation ends", worker.ends_at && html`<${Ago} at=${worker.ends_at} />`],
        ["Since", worker.created_at && html`<${Ago} at=${worker.created_at} />`],
        ["Owner", worker.owner_id],
        ["Id", html`<span class="id">${worker.id}</span> <${Copy} text=${worker.id} />`, "wide"],
      ]} /></section>
      <${Section} title="Current tasks" class="wide" actions=${html`<a href=${href("tasks", { worker: id })}>All its tasks</a>`}><${Current} tasks=${worker.tasks} /><//>
      <${Section} title=${plural(worker.job_count, "job")}>${worker.jobs.length
        ? html`<ul class="names">${worker.jobs.map((name) => html`<li key=${name}><${JobLink} name=${name} /></li>`)}</ul>${worker.job_count > worker.jobs.length && html`<p class="help">and ${count(worker.job_count - worker.jobs.length)} more</p>`}`
        : html`<${Empty}>It serves no job.<//>`}<//>`}<//><//>`;
}

function Current({ tasks }) {
  const columns = [
    TASK_COLUMNS.id, TASK_COLUMNS.status, TASK_COLUMNS.job, TASK_COLUMNS.room,
    { name: "ran", label: "For", class: "number", render: (task) => html`<${Between} from=${task.started_at ?? task.claimed_at} />` },
    { name: "attempt", label: "Attempt", class: "number", render: (task) => task.attempts },
  ];
  return html`<${Table} caption="Current tasks" columns=${columns} rows=${tasks} empty="It holds no task at the moment." />`;
}
