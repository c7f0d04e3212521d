// One job: its counts, policy, schema and workers, what happened in the last hour, and a form to submit a task.
import { get } from "../api.js";
import { canOperate, canReadAll, canWriteRoom, ownRoom } from "../auth.js";
import { compact, count, duration, limitText, plural, requirementsText } from "../format.js";
import { stringify } from "../json.js";
import { html, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { DURATIONS, Plot } from "../plots.js";
import { href, showTasksBetween } from "../router.js";
import { filled, mergedHistogram, quantile, sumOf } from "../statistics.js";
import { Ago, Badge, Copy, Empty, Facts, Figure, Json, Loaded, Page, RoomLink, runningLabel, Section, Table } from "../ui.js";
import { Failures } from "./overview.js";
import { ForgetButton, JobState, PauseButton } from "./jobs.js";
import { jobPath, maySubmit, Submit } from "./submit.js";
import { Bulk } from "./tasks.js";
import { readWorkers, WorkerTable } from "./workers.js";

async function load(name, signal) {
  const [room, category] = name.split(":");
  if (canReadAll.value) {
    // The list has the counts, and soft-deleted jobs too.
    const { items } = await get("/jobs", { room, category, name: name.split(":")[2], deleted: true, limit: 200 }, { signal });
    const entry = items.find((job) => job.full_name === name);
    if (entry) return entry;
  }
  return get(`/rooms/${encodeURIComponent(canReadAll.value ? room : ownRoom.value || room)}/jobs/${jobPath(name)}`, {}, { signal });
}

export function Job({ segments }) {
  const name = segments[1];
  const state = usePoll((signal) => load(name, signal), [name, ownRoom.value]);
  const job = state.data;
  const maySend = job && maySubmit(job, canWriteRoom.value);
  return html`<${Page} title=${name.split(":").at(-1)} actions=${job && html`${maySend && html`<button type="button" class="primary" onClick=${showForm}>Submit a task</button>`}
      <${PauseButton} job=${job} reload=${state.reload} small=${false} />
      <${ForgetButton} job=${job} reload=${state.reload} />
      <a class="button" href=${href("tasks", { job: name })}>All its tasks</a>`}>
    <${Loaded} state=${state} missing=${`There is no job ${name}. Its full name is room:category:name, such as @global:modifiers:relax.`}>${(shown) => html`
      <${Summary} job=${shown} hasForm=${maySend} />
      ${canReadAll.value && html`<${Failures} job=${shown.full_name} />`}
      <${Activity} job=${shown} />
      <div class="columns">
        ${maySend && html`<${Submit} key=${stringify(shown.schema ?? {})} job=${shown} />`}
        <div class="stack">
          <${Policy} job=${shown} />
          <${Section} title="Schema of the payload" actions=${html`<${Copy} text=${stringify(shown.schema, 2)} label="Copy JSON" />`}>
            <${Json} value=${shown.schema} label="Schema" /><//>
        </div>
      </div>
      <${Versions} job=${shown} reload=${state.reload} />
      <${JobWorkers} job=${shown} />`}<//><//>`;
}

function Versions({ job, reload }) {
  const chosen = useSignal(null);
  if (!(job.versions?.length > 1)) return null;
  const isOld = (version) => !version.current && version.pending + version.scheduled > 0;
  const columns = [
    { name: "version", label: "Version", render: ({ version, current }) => html`<a href=${href("tasks", { job: job.full_name, version })}>Version ${version}</a>${current && html` <${Badge} tone="good">current<//>`}` },
    ...["workers", "pending", "scheduled"].map((name) => ({ name, label: { workers: "Workers", pending: "Queued", scheduled: "Scheduled" }[name], class: "number", render: (version) => count(version[name]) })),
    canOperate.value && { name: "do", label: "Actions", render: (version) => isOld(version) && html`<button type="button" class="small" onClick=${() => (chosen.value = version.version)} aria-label=${`Retarget version ${version.version}`}>Retarget …</button>` },
  ].filter(Boolean);
  return html`<${Section} title="Versions of the schema" class="wide" actions=${html`<span class="help">A task goes to a worker whose schema accepts that of its version.</span>`}>
    <${Table} caption="Versions of the schema" columns=${columns} rows=${job.versions} rowKey=${({ version }) => String(version)} />
    ${chosen.value && html`<${Bulk} action="retarget" filter=${{ job: [job.full_name], version: [chosen.value] }} onClose=${() => (chosen.value = null)} onDone=${reload} />`}<//>`;
}

// The form is below the counts: the first field gets the focus.
function showForm() {
  const form = document.querySelector("section.submit");
  form.scrollIntoView();
  form.querySelector("form :is(input, select, textarea)")?.focus({ preventScroll: true });
}

function Summary({ job, hasForm }) {
  const to = (status) => href("tasks", { job: job.full_name, status });
  const state = typeof job.workers === "number" ? html`<${JobState} job=${job} />` : html`<${Badge} tone=${job.paused ? "warn" : "good"}>${job.paused ? "paused" : "active"}<//>`;
  const facts = html`<section class="card" aria-label="Summary"><${Facts} items=${[
    ["Description", !hasForm && job.schema?.description && html`<span class="text">${job.schema.description}</span>`, "all"],
    ["Full name", html`<span class="name">${job.full_name}</span> <${Copy} text=${job.full_name} />`, "wide"],
    ["State", state],
    ["Room", html`<${RoomLink} id=${job.room_id} />`],
    ["Category", job.category],
    ["Created", job.created_at && html`<${Ago} at=${job.created_at} />`],
    ["No worker since", job.unserved_since && html`<${Ago} at=${job.unserved_since} />${job.queued ? `, ${plural(job.queued, "task")} queued` : ""}`],
    ["Oldest waiting", job.oldest_waiting_at && html`<${Ago} at=${job.oldest_waiting_at} />`],
  ]} /></section>`;
  if (!job.counts) return facts;
  const { counts } = job;
  return html`${facts}<section class="figures" aria-label="Counts">
    <${Figure} label=${job.scheduled ? `queued, ${compact(job.scheduled)} scheduled` : "queued"} value=${compact(job.queued)} to=${to("pending")} />
    <${Figure} label=${runningLabel(counts, job.max_in_flight ? `running, limit ${count(job.max_in_flight)}` : "running")} value=${compact(counts.running)} tone=${counts.running ? "busy" : ""} to=${to(counts.claimed ? ["claimed", "running"] : "running")} />
    <${Figure} label="completed" value=${compact(counts.completed)} title=${count(counts.completed)} to=${to("completed")} />
    <${Figure} label="failed" value=${compact(counts.failed)} title=${count(counts.failed)} tone=${counts.failed ? "bad" : ""} to=${to("failed")} />
    <${Figure} label="cancelled" value=${compact(counts.cancelled)} title=${count(counts.cancelled)} to=${to("cancelled")} />
    <${Figure} label=${`workers${job.versions?.length > 1 ? ` of version ${job.version}` : ""}, ${plural(job.slots, "slot")}`} value=${count(job.workers)} tone=${job.workers || job.room_id === "@internal" ? "" : "bad"} />
  </section>`;
}

const WITHOUT_WORKERS = { forget: "the job is forgotten", reject: "submits are refused", queue: "tasks wait" };
const WHY = { worker_lost: "lost worker", error: "failure", timeout: "time limit" };

// The first pauses after failures, and the longest: 2.7 s, 7.4 s, 20 s, … at most 6 h.
function pausesText({ base_seconds: base, factor, cap_seconds: longest, jitter }) {
  const pauses = [1, 2, 3].map((failed) => Math.min(longest, base * factor ** failed));
  const less = jitter ? `, each up to ${Math.round(jitter * 100)} % shorter` : "";
  if (pauses[0] === 0) return "none";
  if (factor === 1 || pauses[0] === longest) return `${duration(pauses[0])} each${less.replace("each ", "")}`;
  return `${pauses.map(duration).join(", ")}, … at most ${duration(longest)}${less}`;
}

const keptText = (time) => (time == null || time === "forever" ? "for ever" : duration(time));

// How long the server keeps ended tasks: with its settings for an operator, with the job's own times for others.
function Kept({ job }) {
  const state = usePoll((signal) => canReadAll.value ? get("/admin/retention", { job: job.full_name }, { signal }) : null, [job.full_name, canReadAll.value], 60);
  const statuses = ["completed", "failed", "cancelled"];
  if (state.data?.completed) {
    // The time of a job applies at once; that of the settings later, if nobody has set it.
    const later = state.data.applies_at && statuses.every((status) => !state.data[status].older || state.data[status].source === "settings");
    const older = statuses.reduce((sum, status) => sum + state.data[status].older, 0);
    return html`${statuses.map((status) => `${status} ${keptText(state.data[status].keep_seconds)}`).join(", ")}${older > 0 && html`<br /><span class="help">${state.data.is_complete ? "" : "more than "}${plural(older, "task")} older, to be deleted${later ? html`, the first <${Ago} at=${state.data.applies_at} />` : ""}</span>`}`;
  }
  return html`${statuses.map((status) => `${status} ${job.keep?.[status] == null ? "as the server's settings say" : keptText(job.keep[status])}`).join(", ")}`;
}

function Policy({ job }) {
  return html`<${Section} title="Policy"><${Facts} items=${[
    ["Attempts", count(job.max_attempts)],
    ["Tried again after", job.retry_on.map((reason) => WHY[reason] ?? reason).join(", ") || "nothing"],
    ["Never tried again after", job.non_retryable?.join(", ") || "no exception in particular"],
    ["Lost workers at most", count(job.max_crashes)],
    ["Pauses between attempts", pausesText(job.backoff)],
    ["Time limit of an attempt", job.timeout_seconds ? duration(job.timeout_seconds) : "none"],
    ["Expected to run for", job.expected_seconds ? duration(job.expected_seconds) : job.timeout_seconds ? "up to the time limit" : "as most of its last runs"],
    ["Time to start", job.start_timeout_seconds ? duration(job.start_timeout_seconds) : "no limit"],
    ["Running at once", job.max_in_flight ? count(job.max_in_flight) : "no limit"],
    ["Requires", requirementsText(job.requires) || "nothing"],
    ["Slots of a task", count(job.cost ?? 1)],
    ["Prefers", requirementsText(job.prefer) || "no worker"],
    ["Limits", job.limits?.map(limitText).join("; ") || "none"],
    ["Pending at once", job.max_pending ? count(job.max_pending) : "no limit"],
    ["Pending from one room", job.max_pending_per_room ? count(job.max_pending_per_room) : "no limit"],
    ["Priority", String(job.priority)],
    ["Batches", job.batch && `up to ${count(job.batch.max)} tasks${job.batch.key ? ` with equal ${job.batch.key}` : ""}, waits ${duration(job.batch.wait_seconds)} for more`],
    ["Ended tasks are kept", html`<${Kept} job=${job} />`, "wide"],
    ["Without workers", WITHOUT_WORKERS[job.without_workers] ?? "as the server's settings say"],
  ]} /><//>`;
}

function Activity({ job }) {
  const mayRead = canReadAll.value || job.room_id === ownRoom.value;
  const state = usePoll((signal) => mayRead ? get("/statistics", { job: job.full_name, resolution: 60, since: new Date(Date.now() - 3_600_000).toISOString() }, { signal }) : null,
    [job.full_name, mayRead], 30);
  const intervals = state.data?.intervals;
  // A server without statistics, or a caller who may not read them.
  if (!intervals?.length) return null;
  const until = Math.floor(Date.now() / 1000);
  const range = [until - 3600, until];
  const { times, at } = filled(intervals, 60, ...range);
  const values = (name) => at.map((interval) => interval?.[name] ?? 0);
  const quantiles = (name, q) => at.map((interval) => (interval ? quantile(interval[name], q) : null));
  const summary = `In the last hour: ${plural(sumOf(intervals, "submitted"), "task")} submitted, ${count(sumOf(intervals, "completed"))} completed, ${count(sumOf(intervals, "failed"))} failed.`;
  const [waited, ran] = ["waiting", "running"].map((name) => quantile(mergedHistogram(intervals, name), 0.5));
  const lasted = ran === null ? "No attempt ended in the last hour." : `Half of the attempts waited less than ${duration(waited)} and ran less than ${duration(ran)}.`;
  return html`<div class="columns">
    <${Section} title="Tasks per minute"><${Plot} times=${times} range=${range} sync="job" onSelect=${showTasksBetween({ job: job.full_name })} summary=${summary} series=${[
      { label: "submitted", colour: "soft", values: values("submitted"), dash: [4, 4] },
      { label: "completed", colour: "good", values: values("completed"), fill: true },
      { label: "failed", colour: "bad", values: values("failed"), fill: true },
    ]} /><p class="help">${summary}</p><//>
    <${Section} title="Waiting and running"><${Plot} times=${times} range=${range} sync="job" onSelect=${showTasksBetween({ job: job.full_name })} incrs=${DURATIONS} format=${duration} summary=${lasted} series=${[
      { label: "half waited", colour: "warn", values: quantiles("waiting", 0.5) },
      { label: "half ran", colour: "busy", values: quantiles("running", 0.5), fill: true },
    ]} /><p class="help">${lasted}</p><//></div>`;
}

// How many slots of workers the tasks of the job need. The demand of jobs of all rooms is for those who read all rooms.
function Demand({ job }) {
  const mayRead = canReadAll.value || !job.room_id.startsWith("@");
  const { data } = usePoll((signal) => (mayRead ? get(`/jobs/${jobPath(job.full_name)}/demand`, {}, { signal }) : null), [job.full_name, mayRead], 10);
  if (!data) return null;
  return html`<p class="help">${plural(data.desired_slots, "slot")} desired for ${count(data.queued)} queued and ${count(data.running)} running, ${count(data.slots)} present${data.held_back > 0 && `; ${plural(data.held_back, "task")} held back by a pause or a limit`}.</p>`;
}

function JobWorkers({ job }) {
  const state = usePoll((signal) => readWorkers(signal), [job.full_name], 10);
  return html`<${Section} title="Workers" class="wide"><${Demand} job=${job} /><${Loaded} state=${state}>${({ items }) => {
    const serving = items.filter((worker) => worker.jobs.includes(job.full_name));
    if (!serving.length) return html`<${Empty}>${job.room_id === "@internal" ? "The server runs this job itself, or through its broker." : html`No worker serves this job${job.unserved_since && html` since <${Ago} at=${job.unserved_since} />`}. ${job.without_workers === "reject" ? "It accepts no task" : "Its tasks wait"} until one registers it.`}<//>`;
    return html`<${WorkerTable} workers=${serving} reload=${state.reload} />`;
  }}<//><//>`;
}
