// What is wrong first, then how much happens, then who works.
import { get } from "../api.js";
import { canOperate } from "../auth.js";
import { between, compact, count, duration, localTimes, plural } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll, useStream } from "../live.js";
import { DURATIONS, Plot } from "../plots.js";
import { href, route, setQuery, showTasksBetween } from "../router.js";
import { causesOf, filled, mergedHistogram, quantile, sumOf } from "../statistics.js";
import { Ago, Badge, Between, Clip, Empty, isNarrow, JobLink, Loaded, Page, Section, Table } from "../ui.js";
import { Bulk } from "./tasks.js";

const WHOLE = [1, 2, 5].flatMap((step) => [1, 10, 100, 1000, 10_000, 100_000].map((size) => step * size)).sort((a, b) => a - b);
const RANGES = {
  "1h": { label: "Hour", seconds: 3600, resolution: 60 },
  "24h": { label: "Day", seconds: 86_400, resolution: 60 },
  "7d": { label: "Week", seconds: 7 * 86_400, resolution: 3600 },
  "30d": { label: "Month", seconds: 30 * 86_400, resolution: 3600 },
};

export function Overview() {
  // The stream sends each change; the request is for servers whose streams are all taken.
  const polled = usePoll((signal) => get("/overview", {}, { signal }), [], 30);
  const streamed = useSignal(null);
  const stream = useStream("/overview/events", (event, data) => event === "overview" && (streamed.value = data));
  const isNewer = streamed.value && (!polled.data || streamed.value.at >= polled.data.at);
  const state = isNewer ? { ...polled, data: streamed.value, error: null } : polled;
  return html`<${Page} title="Overview" actions=${html`<${Badge} tone=${stream.isOpen ? "good" : "warn"}>${stream.isOpen ? "live" : "connecting"}<//>`}>
    <${Loaded} state=${state}>${(overview) => html`
      <${Findings} findings=${overview.findings} />
      <${Statuses} overview=${overview} />
      <${Failures} />
      <${History} overview=${overview} />
      <${Servers} servers=${overview.servers} />`}<//><//>`;
}

const REMEDIES = {
  task: (finding) => [["Show the task", href(["tasks", finding.task])]],
  job: (finding) => [
    ["Show the job", href(["jobs", finding.job])],
    ["failing-job", "failure-rate"].includes(finding.code)
      ? ["Show its failed tasks", href("tasks", { job: finding.job, status: "failed", since: "1h" })]
      : finding.code === "lost-attempts" ? ["Show its tasks that failed so", href("tasks", { job: finding.job, error_code: ["worker-lost", "start-timeout", "run-timeout"] })]
      : ["Show its waiting tasks", href("tasks", { job: finding.job, status: "pending" })],
  ].slice(0, finding.code.startsWith("schedule-") ? 1 : 2),
  room: (finding) => [["Show the room", href(["rooms", finding.room])]],
};

function linksOf(finding) {
  const remedies = ["task", "job", "room"].flatMap((name) => (finding[name] ? REMEDIES[name](finding) : []));
  if (finding.code.startsWith("sweeper")) remedies.push(["Show the sweeper", href("sweeper")]);
  if (finding.code.startsWith("schedule-") && finding.room) remedies.push(["Show its schedules", href("schedules", { room: finding.room })]);
  if (finding.code.startsWith("webhook-")) remedies.push(["Show its webhooks", href("webhooks", { room: finding.room })]);
  if (finding.code === "pending-tasks-near-limit") remedies.push(["Show the pending tasks", href("tasks", { status: "pending" })]);
  if (finding.code.endsWith("-near-limit")) remedies.push(["Show the settings", href("settings")]);
  if (finding.code === "worker-token-ending") remedies.push(["Show the workers", href("workers")]);
  if (finding.code === "silent-workers") remedies.push(["Show the workers", href("workers", { state: "silent" })]);
  if (finding.code === "lost-attempts" && !finding.job) remedies.push(["Show failed tasks", href("tasks", { status: "failed", since: "1h" })]);
  return remedies;
}

// A line of a command breaks before an option, not after its hyphens.
const Remedy = ({ text }) => text.split(/(--[\w-]+)/).map((part, index) => (index % 2 ? html`<span class="option">${part}</span>` : part));
const Finding = ({ finding }) => html`<li class="finding ${finding.severity}">
  <div class="finding-head"><${Badge} tone=${{ critical: "bad", warning: "warn" }[finding.severity] ?? "quiet"} title=${finding.code}>${finding.severity}<//>
    <strong>${localTimes(finding.detail)}</strong>${finding.since && html`<span class="help">for <${Between} from=${finding.since} /></span>`}</div>
  <p><${Remedy} text=${finding.remedy} /> <span class="links">${linksOf(finding).map(([label, to]) => html`<a key=${to} href=${to}>${label}</a>`)}</span></p></li>`;

// The text of a finding about a token or a user begins with its name, and goes on with numbers and times.
const keyOf = (finding) => [finding.code, finding.job, finding.room, finding.task, finding.detail.split(" ", 2)].join();

// The first items of a list, and a button for the others.
function Folded({ items, size, list, word }) {
  const isOpen = useSignal(false);
  return html`${list(isOpen.value ? items : items.slice(0, size))}
    ${items.length > size && html`<button type="button" class="small unfold" aria-expanded=${isOpen.value ? "true" : "false"} onClick=${() => (isOpen.value = !isOpen.value)}>${isOpen.value ? "Show fewer" : `Show ${plural(items.length - size, `more ${word}`)}`}</button>`}`;
}

// Problems, and below them what operators wanted, as pauses: these are none.
export function Findings({ findings }) {
  const problems = findings.filter((finding) => finding.severity !== "info");
  const others = findings.filter((finding) => finding.severity === "info");
  return html`${problems.length === 0
    ? html`<section class="fine" aria-label="Findings"><${Badge} tone="good">Nothing is wrong<//>
      <span>Jobs have workers, no task waits too long, and the sweeper runs.</span></section>`
    : html`<section class="findings" aria-labelledby="findings"><h2 id="findings">${plural(problems.length, "problem")}</h2>
      <${Folded} items=${problems} size=${isNarrow.value ? 2 : 4} list=${(items) => html`<ul>${items.map((finding) => html`<${Finding} key=${keyOf(finding)} finding=${finding} />`)}</ul>`} word="problem" /></section>`}
    ${others.length > 0 && html`<section class="findings" aria-label="Pauses"><ul>${others.map((finding) => html`<${Finding} key=${keyOf(finding)} finding=${finding} />`)}</ul></section>`}`;
}

// What the counts of a period are, everywhere on this page.
const ENDS = "Each end of a task counts, at its time: a task that is retried by hand and fails again counts twice. An attempt that is repeated by itself ends no task. The list has the tasks that were created in this time.";
const TONES = { claimed: "warn", running: "busy", failed: "bad", completed: "good" };

function Statuses({ overview }) {
  const { counts, workers, oldest_waiting_at: oldest, at, recent } = overview;
  const active = (workers.active ?? 0) + (workers.draining ?? 0) + (workers.silent ?? 0);
  const rows = [
    ["scheduled", overview.scheduled, { scheduled: "true" }],
    ["queued", overview.queued, { status: "pending", scheduled: "false" }],
    ["claimed", counts.claimed, { status: "claimed" }],
    ["running", counts.running, { status: "running" }],
    ["failed", sumOf(recent, "failed"), { status: "failed", since: "1h" }, "in the last hour", ENDS],
    ["completed", sumOf(recent, "completed"), { status: "completed", since: "1h" }, "in the last hour", ENDS],
  ];
  const facts = [
    html`<a href=${href("workers")} class=${active ? "" : "error"}>${plural(active, "worker")}</a>${workers.silent > 0 && html`, <a class="warn" href=${href("workers", { state: "silent" })}>${count(workers.silent)} silent</a>`}${workers.draining > 0 && `, ${count(workers.draining)} draining`}`,
    html`${count(overview.slots_used)} of ${plural(overview.slots, "slot")} in use`,
    oldest && html`<span class=${between(oldest, at) > 3600 ? "warn" : ""}>the oldest waits for ${duration(between(oldest, at))}</span>`,
    html`<a href=${href("jobs")}>${plural(overview.jobs, "job")}</a>${overview.paused_jobs > 0 && html`, <a href=${href("jobs", { paused: "true" })}>${count(overview.paused_jobs)} paused</a>`}`,
    html`<span title="Tasks that have this status now, and are not deleted yet">in all <a href=${href("tasks", { status: "completed" })}>${count(counts.completed)} completed</a>, <a href=${href("tasks", { status: "failed" })}>${count(counts.failed)} failed</a></span>`,
  ];
  return html`<section class="card statuses" aria-label="Counts"><ul>${rows.map(([name, size, query, more, meaning]) => html`<li key=${name}>
      <a href=${href("tasks", query)} title=${`${count(size)} ${name}${more ? ` ${more}. ${meaning}` : ""}`}><span class="value ${size ? TONES[name] : ""}">${compact(size)}</span> <span class="label">${name}${more && html`<span class="of-hour"> ${more}</span>`}</span></a></li>`)}</ul>
    <p class="help">${facts.filter(Boolean).map((fact, index) => html`${index > 0 && " · "}${fact}`)}</p></section>`;
}

// Of how many seconds failures are grouped: of the period that is shown, but of a day at least.
const groupedSeconds = () => Math.max(RANGES[route.value.query.get("range")]?.seconds ?? 0, 86_400);

// The newest failed tasks by job and exception. A group without an exception may be a part of those with its error code,
// so it cannot be retried as a whole.
export function Failures({ job }) {
  const seconds = groupedSeconds();
  const since = () => new Date(Date.now() - seconds * 1000).toISOString();
  const state = usePoll((signal) => get("/tasks/failures", { job, since: since() }, { signal }), [seconds, job], 15);
  const retrying = useSignal(null);
  const groups = state.data?.groups;
  if (!groups?.length) return null;
  const filterOf = (group) => ({ job: [group.job_name], status: ["failed"], error_code: group.error_code ? [group.error_code] : [], exception: group.exception ? [group.exception] : [] });
  const isWhole = (group) => group.exception || group.error_code !== "error";
  const columns = [
    { name: "count", label: "Failed", class: "number", render: (group) => html`<a class="error" href=${href("tasks", { ...filterOf(group), since: sinceName(seconds) })}><b>${count(group.count)}</b></a>` },
    !job && { name: "job", label: "Job", render: (group) => html`<${JobLink} name=${group.job_name} />` },
    { name: "kind", label: "Exception", render: (group) => html`<b class="name">${group.exception ?? group.error_code ?? "unknown"}</b>` },
    { name: "example", label: "Last error", class: "text", render: (group) => html`<${Example} group=${group} />` },
    { name: "first", label: "First", render: (group) => html`<${Ago} at=${group.first_at} isShort />` },
    { name: "last", label: "Last", render: (group) => html`<${Ago} at=${group.last_at} isShort />` },
    canOperate.value && { name: "do", label: "Actions", render: (group) => isWhole(group) && html`<button type="button" class="small" aria-label=${`Retry all ${count(group.count)} of ${group.job_name}, ${group.exception ?? group.error_code}`} onClick=${() => (retrying.value = { ...filterOf(group), since: since() })}>Retry all …</button>` },
  ].filter(Boolean);
  return html`<${Section} title="Failures by job and exception" actions=${html`<span class="help" title="Tasks that were created in this time and are failed now">of ${state.data.is_complete ? "" : `the newest ${count(state.data.count)} of `}the last ${seconds > 86_400 ? duration(seconds) : "24 h"}</span>`}>
    <${Folded} items=${groups} size=${8} word="group" list=${(items) => html`
      <${Table} caption="Failures by job and exception" class="failures" columns=${columns} rows=${items} rowKey=${(group) => [group.job_name, group.error_code, group.exception].join()} />`} /><//>
    ${retrying.value && html`<${Bulk} action="retry" filter=${retrying.value} onClose=${() => (retrying.value = null)} onDone=${state.reload} />`}`;
}

function Example({ group }) {
  const [text, to] = [withoutName(group), href(["tasks", group.example])];
  if (!isNarrow.value || !text) return html`<a class="clip" href=${to} title=${group.error}>${text || "Show the task"}</a>`;
  return html`<${Clip} class="error" text=${text} /><a href=${to}>Show the task</a>`;
}

const sinceName = (seconds) => (seconds === 86_400 ? "24h" : seconds === 7 * 86_400 ? "7d" : "30d");
const withoutName = ({ error, exception }) => (exception && error?.startsWith(`${exception}:`) ? error.slice(exception.length + 1).trim() : error);

function History({ overview }) {
  const name = RANGES[route.value.query.get("range")] ? route.value.query.get("range") : "1h";
  const { seconds, resolution, label } = RANGES[name];
  const isRecent = name === "1h";
  const until = Math.floor(new Date(overview.at) / 1000);
  const since = until - seconds;
  const polled = usePoll(
    (signal) => isRecent ? null : get("/statistics", { resolution, since: new Date((Date.now() / 1000 - seconds) * 1000).toISOString() }, { signal }),
    [name], isRecent ? 3600 : 60,
  );
  const intervals = isRecent ? overview.recent : polled.data?.intervals;
  const choice = html`<div class="set" role="group" aria-label="Period"><div>${Object.entries(RANGES).map(([key, range]) => html`
    <button key=${key} type="button" class="chip" aria-pressed=${key === name ? "true" : "false"} onClick=${() => setQuery({ range: key === "1h" ? null : key })}>${range.label}</button>`)}</div></div>`;
  if (!intervals) return html`<${Section} title="History" actions=${choice}><${Loaded} state=${polled}>${() => null}<//><//>`;
  const view = { ...filled(intervals, resolution, since, until), intervals, range: [since, until], per: resolution === 60 ? "minute" : "hour", label: label.toLowerCase() };
  return html`<div class="heading"><h2>The last ${view.label}</h2><span class="help">Drag over a plot to see the tasks of that time.</span>${choice}</div><div class="columns plots">
    <${Throughput} ...${view} /><${Waiting} ...${view} />
    <${Running} ...${view} /><${Causes} ...${view} /></div>`;
}

function Throughput({ times, at, intervals, range, per, label }) {
  const values = (name) => at.map((interval) => interval?.[name] ?? 0);
  const series = [
    { label: "submitted", colour: "soft", values: values("submitted"), dash: [4, 4] },
    { label: "completed", colour: "good", values: values("completed"), fill: true },
    { label: "failed", colour: "bad", values: values("failed"), fill: true },
  ];
  const summary = `Tasks in the last ${label}: ${count(sumOf(intervals, "submitted"))} submitted, ${count(sumOf(intervals, "completed"))} completed, ${count(sumOf(intervals, "failed"))} failed.`;
  return html`<${Section} title=${`Tasks per ${per}`}><${Plot} times=${times} series=${series} range=${range} sync="overview" onSelect=${showTasksBetween({})} least=${4} incrs=${WHOLE} summary=${summary} />
    <p class="help" title=${ENDS}>${summary}</p><//>`;
}

const durations = (name, title, words) =>
  function Durations({ times, at, intervals, range, label }) {
    const of = (q) => at.map((interval) => (interval ? quantile(interval[name], q) : null));
    const series = [
      { label: "half within", colour: "accent", values: of(0.5), fill: true },
      { label: "95 % within", colour: "warn", values: of(0.95) },
    ];
    const all = mergedHistogram(intervals, name);
    const median = quantile(all, 0.5);
    const summary = median === null
      ? `No task ${words[0]} in the last ${label}.`
      : `In the last ${label}, half of the tasks ${words[1]} up to ${duration(median)}, and 95 % up to ${duration(quantile(all, 0.95))}.`;
    return html`<${Section} title=${title}><${Plot} times=${times} series=${series} range=${range} sync="overview" onSelect=${showTasksBetween({})} least=${1} incrs=${DURATIONS} format=${duration} summary=${summary} />
      <p class="help">${summary}</p><//>`;
  };
const Waiting = durations("waiting", "Waiting time", ["was claimed", "waited"]);
const Running = durations("running", "Running time", ["ended", "ran"]);

function Causes({ intervals, label }) {
  const causes = causesOf(intervals).slice(0, 8);
  const highest = causes[0]?.[1] ?? 1;
  // Of a failed task without a code no cause is counted.
  const [failed, lost] = [sumOf(intervals, "failed"), sumOf(intervals, "lost")];
  const attempts = Math.max(failed, causesOf(intervals).reduce((sum, [, size]) => sum + size, 0));
  return html`<${Section} title="Why attempts failed">${causes.length
    ? html`<ul class="bars">${causes.map(([code, size]) => html`<li key=${code}>
        <a href=${href("tasks", { error_code: code, since: "1h" })}>${code}</a><span>${count(size)}</span>
        <meter min="0" max=${highest} value=${size} aria-label=${`${code}: ${count(size)}`}></meter></li>`)}</ul>`
    : html`<${Empty}>No attempt failed in the last ${label}.<//>`}
    <p class="help" title=${ENDS}>${plural(attempts, "attempt")} failed or ${attempts === 1 ? "was" : "were"} lost: ${plural(failed, "task")} ended as failed, ${count(attempts - failed)} returned to their queues.
      ${lost > 0 && ` ${plural(lost, "attempt was", "attempts were")} lost: a worker went away, or time ran out.`}</p><//>`;
}

function Servers({ servers }) {
  const columns = [
    { name: "host", label: "Host", render: (server) => html`${server.host} <span class="help">pid ${server.pid}</span>` },
    { name: "state", label: "State", render: (server) => html`<${Badge} tone=${server.is_silent ? "bad" : "good"}>${server.is_silent ? "silent" : "running"}<//>` },
    { name: "version", label: "Version", render: (server) => server.version },
    { name: "started", label: "Started", render: (server) => html`<${Ago} at=${server.started_at} />` },
    { name: "seen", label: "Seen", render: (server) => html`<${Ago} at=${server.seen_at} />` },
    { name: "sweeper", label: "Last good cycle of the sweeper", render: (server) => html`<${Ago} at=${server.last_good_at} />` },
  ];
  return html`<${Section} title="Servers"><${Table} caption="Servers" columns=${columns} rows=${servers} empty="No server has reported yet." /><//>`;
}
