// One task: why it waits or failed, what it does, what it got and returned, and what may be done with it.
import { act, get } from "../api.js";
import { canOperate, canReadAll, canWriteRoom, config, me, ownRoom } from "../auth.js";
import { count, duration, localTimes, partsOf, requirementsText, shortId, subject } from "../format.js";
import { stringify } from "../json.js";
import { html, useEffect, useSignal } from "../lib.js";
import { usePoll, useStream } from "../live.js";
import { href, replace, route, setQuery } from "../router.js";
import { Ago, Badge, Button, Copy, Empty, Find, IS_BEGINNING, JobLink, Json, Loaded, nameOfWorker, Page, Parts, RoomLink, Section, Facts, Status, Table, Tags, TASK_COLUMNS, TaskLink, WorkerLink } from "../ui.js";
import { Comparison } from "./compare.js";
import { Result } from "./result.js";
import { Log } from "./task_log.js";
import { IS_ID } from "./task_filter.js";
import { apply } from "./tasks.js";
import { Steps } from "./steps.js";
import { isOver, Timeline } from "./timeline.js";
import { Tree } from "./tree.js";
import { Value } from "./values.js";

async function load(id, abort) {
  const [task, history, explanation] = await Promise.all(
    ["", "/history", "/explain"].map((part) => get(`/tasks/${encodeURIComponent(id)}${part}`, {}, { signal: abort })));
  return { task, history, explanation };
}


export const Task = ({ segments: [, id] }) => (IS_ID.test(id) ? html`<${Whole} id=${id} />` : html`<${Shortened} id=${id} />`);

const NoTask = ({ id }) => html`<${Empty}>No such task: ${id}. Tasks that have ended are deleted after some time.${!IS_BEGINNING.test(id) && " An id has digits and the letters a to f, and its beginning at least four of them."}<//>
  <${Find} text=${id} />`;

// The beginning of an id: that of one task leads to it, that of several to a list of them.
async function readBeginning(id, abort) {
  if (!IS_BEGINNING.test(id)) return [];
  const { tasks } = await get("/ids", { prefix: id, room: canReadAll.value ? undefined : ownRoom.value }, { signal: abort });
  if (tasks.length === 1) return tasks.map((one) => ({ id: one }));
  const read = await Promise.allSettled(tasks.map((one) => get(`/tasks/${one}`, {}, { signal: abort })));
  return read.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
}

const MAX_FOUND = 10;
const FOUND = [
  TASK_COLUMNS.id, TASK_COLUMNS.status, TASK_COLUMNS.job,
  { name: "payload", label: "Payload", class: "text", render: (task) => subject(task.payload) },
  TASK_COLUMNS.room, TASK_COLUMNS.created,
];

function Shortened({ id }) {
  const state = usePoll((abort) => readBeginning(id, abort), [id], null);
  const tasks = state.data ?? [];
  useEffect(() => {
    if (tasks.length === 1) replace(["tasks", tasks[0].id]);
  }, [tasks[0]?.id, tasks.length]);
  if (state.error?.status === 422 || state.data?.length === 0) return html`<${Page} title="Task"><${NoTask} id=${id} /><//>`;
  return html`<${Page} title="Task"><${Loaded} state=${state}>${() => tasks.length > 1 && html`
    <${Section} title=${`${tasks.length === MAX_FOUND ? "The first " : ""}${tasks.length} tasks whose ids begin with ${id}`} class="wide">
      <${Table} caption="Tasks" columns=${FOUND} rows=${tasks} /><//><${Find} text=${id} />`}<//><//>`;
}

// A task is called by its job, and by what tells it from the other tasks of the job.
const titleOf = (task) => `${partsOf(task.job_name).name} · ${subject(task.payload) || shortId(task.id)}`;

function Whole({ id }) {
  const state = usePoll((abort) => load(id, abort), [id], 10);
  const progress = useSignal(null);
  const news = useSignal(null);
  const task = state.data?.task;
  const isEnded = !task || isOver(task.status);
  const stream = useStream(isEnded ? null : `/tasks/${encodeURIComponent(id)}/events`, (event, body) => {
    if (event === "progress") progress.value = body.data;
    else if (event === "log") news.value = body.data;
    else if (event === "snapshot") progress.value = body.progress ? { attempt: body.attempt, progress: body.progress } : null;
    else if (event === "status" || event === "result" || event === "end") state.reload();
  });
  const isComparing = useSignal(false);
  const close = () => {
    isComparing.value = false;
    setQuery({ with: null });
  };
  return html`<${Page} title=${task ? titleOf(task) : `Task ${shortId(id)}`} actions=${task && html`
      ${!isEnded && html`<${Badge} tone=${stream.isOpen ? "good" : "warn"}>${stream.isOpen ? "live" : "connecting"}<//>`}
      <${Actions} task=${task} reload=${state.reload} />
      <button type="button" onClick=${() => (isComparing.value = true)}>Compare …</button>`}>
    <${Loaded} state=${state} missing=${html`<${NoTask} id=${id} />`}>${({ task: shown, history, explanation }) => html`<${Parts}>
      <${Summary} task=${shown} explanation=${explanation} />
      ${(isComparing.value || route.value.query.has("with")) && html`<${Comparison} task=${shown} onClose=${close} />`}
      <div class="columns task"><div class="stack"><${Parts}>
        ${!isEnded && html`<${Progress} progress=${(progress.value?.attempt === shown.attempt && progress.value.progress) || shown.progress} />`}
        <${Trouble} task=${shown} history=${history} />
        <${Steps} task=${shown} reload=${state.reload} />
        <${Tree} task=${shown} />
        <${Section} title="Payload" actions=${html`<${Copy} text=${stringify(shown.payload, 2)} label="Copy JSON" />`}>
          <${Value} value=${shown.payload} label="Payload" /><//>
        <${Result} task=${shown} />
      <//></div><div class="stack"><${Parts}>
        <${Log} id=${shown.id} attempt=${shown.attempt} attempts=${attemptsOf(history)} news=${news.value} isEnded=${isEnded} />
        <${Timeline} history=${history} waits=${shown.waits} />
      <//></div></div><//>`}<//><//>`;
}

// The numbers of the attempts and those of their claims, the last 50, newest first.
const attemptsOf = (history) => [...new Map(history.transitions.filter((transition) => transition.attempt_number).map((transition) => [transition.attempt_number, transition.attempt]))].slice(-50).reverse();

// A sentence of the API, with moments in the zone of the reader instead of UTC, and with names of workers.
// The ids of workers become their names, those of tasks and groups links.
const IDS = /([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/;
const OTHERS = /\b(tasks?|groups?)\b/gi;
function Readable({ text }) {
  let noun = "";
  return localTimes(text).split(IDS).map((part, index) => {
    if (index % 2 === 0) {
      noun = part.match(OTHERS)?.at(-1).toLowerCase() ?? (/\bworkers?\b/i.test(part) ? "" : noun);
      return part;
    }
    if (noun.startsWith("group")) return html`<a class="id" href=${href(["groups", part])}>${shortId(part)}</a>`;
    return noun ? html`<${TaskLink} id=${part} />` : nameOfWorker(part) ?? shortId(part);
  });
}

function Summary({ task, explanation }) {
  const isWaiting = task.status === "pending";
  return html`<section class="card" aria-label="Summary">
    <${Facts} items=${[
      ["Status", html`<${Status} status=${task.status} waitsFor=${task.waits && "predecessor"} />`],
      ["Job", html`<${JobLink} name=${task.job_name} />`],
      ["Room", html`<${RoomLink} id=${task.room_id} />`],
      ["Submitter", task.created_by],
      ["Created", html`<${Ago} at=${task.created_at} />`],
      ["Started", task.started_at && html`<${Ago} at=${task.started_at} />`],
      ["Ended", task.completed_at && html`<${Ago} at=${task.completed_at} />`],
      ["Worker", task.worker_id && html`<${WorkerLink} id=${task.worker_id} />`],
      ["Attempts", task.attempts || null],
      ["Priority", task.priority || null],
      ["Due", isWaiting && task.run_at && html`<${Ago} at=${task.run_at} />`],
      ["Fails if not claimed", isWaiting && task.expires_at && html`<${Ago} at=${task.expires_at} />`],
      ["Version of the job", task.version],
      ["Unique key", task.unique_key],
      ["Schedule", task.schedule && html`${task.schedule}${task.due_at && html`, due <${Ago} at=${task.due_at} />`}`],
      ["Group", task.group && html`<a class="id" href=${href(["groups", task.group])} title=${task.group}>${shortId(task.group)}</a>`],
      ["Requires", task.requires && requirementsText(task.requires)],
      ["Takes", task.cost && `${count(task.cost)} slots of its worker`],
      ["Tags", task.tags && html`<${Tags} tags=${task.tags} />`],
      ["Submitted by", task.parent && html`<${TaskLink} id=${task.parent} />`],
      ["First of the tree", task.root && task.root !== task.parent && html`<${TaskLink} id=${task.root} />`],
      ["Id", html`<span class="id">${task.id}</span> <${Copy} text=${task.id} />`, "wide"],
    ]} />
    ${explanation.reasons.length > 0 && !isOver(task.status) && html`<div class="why"><h3>${isWaiting ? "Why it waits" : "Who holds it"}</h3>
      <ul>${explanation.reasons.map((reason) => html`<li key=${reason.code}><code>${reason.code}</code> <${Readable} text=${reason.detail} /></li>`)}</ul>
      ${isWaiting && explanation.wait_seconds !== null && html`<p class="help">It waits about ${duration(explanation.wait_seconds)} at the current rate of its job${
        explanation.queue_position ? `, at position ${count(explanation.queue_position)} of its queue` : ""}.</p>`}</div>`}</section>`;
}

function Progress({ progress }) {
  if (!progress) return null;
  const { current, total, unit, message, data } = progress;
  const part = total ? Math.min(1, Number(current ?? 0) / Number(total)) : null;
  return html`<section class="card progress" aria-label="Progress"><div><strong>${message ?? "Progress"}</strong>
      <span>${[current, total && `of ${total}`, unit, part !== null && `· ${Math.round(part * 100)} %`].filter((part) => part || part === 0).join(" ")}</span></div>
    <progress max="1" value=${part ?? undefined} aria-label="Progress"></progress>
    ${data && html`<details><summary>Data</summary><${Json} value=${data} label="Data of the progress" /></details>`}</section>`;
}

function Trouble({ task, history }) {
  const detail = history.attempts.find((detail) => detail.attempt === task.attempt);
  const failure = detail?.failure ?? task.failure;
  const isFull = useSignal(false);
  if (!task.error && !failure) return null;
  const text = isFull.value ? failure?.full_traceback : failure?.traceback || failure?.full_traceback;
  return html`<${Section} title=${task.status === "pending" ? "The last attempt failed" : "Error"} class="trouble" actions=${html`
      ${failure?.full_traceback && failure.full_traceback !== failure.traceback && html`<button type="button" class="small" aria-pressed=${isFull.value ? "true" : "false"}
        onClick=${() => (isFull.value = !isFull.value)}>All frames</button>`}
      ${text && html`<${Copy} text=${text} />`}`}>
    <p class="error">${task.error_code && html`<code>${task.error_code}</code>`} ${failure?.type && !task.error?.startsWith(failure.type) && html`<strong>${failure.type}</strong> `}${task.error}</p>
    ${failure?.notes?.map((note, index) => html`<p key=${index} class="help">${note}</p>`)}
    ${text && html`<pre tabindex="0" role="region" aria-label="Traceback">${text}</pre>`}<//>`;
}

// What a cancel does: a pending task has no worker, and one that is held or running has one.
function cancelText(task) {
  if (task.status === "pending") return "It will never run: no worker has it, and none gets it. Retry puts it back into its queue.";
  const worker = task.worker_id ? html`Its worker ${nameOfWorker(task.worker_id) ?? shortId(task.worker_id)}` : "The server, which runs it,";
  return html`It ends as cancelled at once. ${worker} ${task.status === "claimed" ? "has not started it, and is told not to" : "is told to stop it; a job that does not look at this runs on"}. What is reported afterwards is refused.`;
}

// Operators may do everything; others cancel, retry and run now what they submitted, and submit in rooms where they may write.
function Actions({ task, reload }) {
  if (config.value.read_only) return null;
  const isOwn = task.created_by === me.value.id;
  const isHeld = ["claimed", "running"].includes(task.status);
  const run = (name) => () => apply[name](task.id).then(reload);
  const may = {
    retry: ["failed", "cancelled"].includes(task.status) && (canOperate.value || isOwn),
    runNow: task.status === "pending" && (task.run_at || task.waits) && (canOperate.value || isOwn),
    cancel: !isOver(task.status) && (canOperate.value || isOwn),
    release: isHeld && canOperate.value,
    fail: !isOver(task.status) && canOperate.value,
    submit: canOperate.value || (canWriteRoom.value && me.value.room === task.room_id),
  };
  const failIt = () => act("POST", `/tasks/${task.id}/fail`, {}).then(reload);
  return html`
    ${may.retry && html`<${Button} tone="primary" onClick=${run("retry")} success="The task is in its queue again.">Retry<//>`}
    ${may.runNow && html`<${Button} tone=${task.waits ? "" : "primary"} onClick=${run("runNow")} success="The task is in its queue."
      confirm=${task.waits && { title: "Run the task now?", body: "It does not wait for the other tasks any longer. If its payload needs the result of one that has not completed, it is refused.", action: "Run now", tone: "primary" }}>Run now<//>`}
    ${may.release && html`<${Button} onClick=${run("release")} success="The task is in its queue again."
      confirm=${{ title: "Release the task?", body: "Its worker loses it, and another worker may claim it. This counts as no failure.", action: "Release", tone: "primary" }}>Release<//>`}
    ${may.cancel && html`<${Button} onClick=${run("cancel")} success="The task is cancelled."
      confirm=${{ title: "Cancel the task?", body: cancelText(task), action: "Cancel the task" }}>Cancel<//>`}
    ${may.fail && html`<${Button} onClick=${failIt} success="The task has failed."
      confirm=${{ title: "Fail the task?", body: "It ends as failed, also while a worker holds it. The worker's later reports are refused.", action: "Fail the task" }}>Fail<//>`}
    ${may.submit && html`<a class="button" href=${href(["jobs", task.job_name], { from: task.id })}>Submit again …</a>`}`;
}
