// What is wrong first, then how much happens, then who works.
import { get } from "../api.js";
import { between, compact, count, duration, plural } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll, useStream } from "../live.js";
import { DURATIONS, Plot } from "../plots.js";
import { href, route, setQuery } from "../router.js";
import { causesOf, filled, mergedHistogram, quantile, sumOf } from "../statistics.js";
import { Ago, Badge, Between, Empty, Figure, Loaded, Page, runningLabel, Section, Table } from "../ui.js";

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
      <${Figures} overview=${overview} />
      <${History} overview=${overview} />
      <${Servers} servers=${overview.servers} />`}<//><//>`;
}

const REMEDIES = {
  task: (finding) => [["Show the task", href(["tasks", finding.task])]],
  job: (finding) => [
    ["Show the job", href(["jobs", finding.job])],
    finding.code === "failing-job"
      ? ["Show its failed tasks", href("tasks", { job: finding.job, status: "failed" })]
      : finding.code === "lost-attempts" ? ["Show its tasks that were lost", href("tasks", { job: finding.job, error_code: ["worker-lost", "run-timeout"] })]
      : ["Show its waiting tasks", href("tasks", { job: finding.job, status: "pending" })],
  ],
  room: (finding) => [["Show the room", href(["rooms", finding.room])]],
};

function linksOf(finding) {
  const remedies = ["task", "job", "room"].flatMap((name) => (finding[name] ? REMEDIES[name](finding) : []));
  if (finding.code.startsWith("sweeper")) remedies.push(["Show the sweeper", href("sweeper")]);
  if (finding.code === "silent-workers") remedies.push(["Show the workers", href("workers", { state: "silent" })]);
  if (finding.code === "lost-attempts" && !finding.job) remedies.push(["Show failed tasks", href("tasks", { status: "failed", since: "1h" })]);
  return remedies;
}

export function Findings({ findings }) {
  if (!findings.length) {
    return html`<section class="fine" aria-label="Findings"><${Badge} tone="good">Nothing is wrong<//>
      <span>Jobs have workers, no task waits too long, and the sweeper runs.</span></section>`;
  }
  return html`<section class="findings" aria-labelledby="findings"><h2 id="findings">${plural(findings.length, "problem")}</h2>
    <ul>${findings.map((finding) => html`<li key=${[finding.code, finding.job, finding.room, finding.task].join()} class="finding ${finding.severity}">
      <div class="finding-head"><${Badge} tone=${finding.severity === "critical" ? "bad" : "warn"} title=${finding.code}>${finding.severity}<//>
        <strong>${finding.detail}</strong>${finding.since && html`<span class="help">for <${Between} from=${finding.since} /></span>`}</div>
      <p>${finding.remedy}</p>
      <p class="links">${linksOf(finding).map(([label, to]) => html`<a key=${to} href=${to}>${label}</a>`)}</p></li>`)}</ul></section>`;
}

function Figures({ overview }) {
  const { counts, workers, oldest_waiting_at: oldest, at } = overview;
  const active = (workers.active ?? 0) + (workers.draining ?? 0) + (workers.silent ?? 0);
  const waited = between(oldest, at);
  const more = [workers.silent && `${count(workers.silent)} silent`, workers.draining && `${count(workers.draining)} draining`].filter(Boolean).join(", ");
  return html`<section class="figures" aria-label="Counts">
    <${Figure} label=${overview.scheduled ? `waiting, ${compact(overview.scheduled)} scheduled` : "waiting"} value=${compact(overview.queued)} to=${href("tasks", { status: "pending" })} />
    <${Figure} label="oldest waiting" value=${oldest ? duration(waited) : "–"} tone=${waited > 3600 ? "warn" : ""} />
    <${Figure} label=${runningLabel(counts)} value=${compact(counts.running)} tone=${counts.running ? "busy" : ""} to=${href("tasks", { status: counts.claimed ? ["claimed", "running"] : "running" })} />
    <${Figure} label="completed" value=${compact(counts.completed)} to=${href("tasks", { status: "completed" })} title=${count(counts.completed)} />
    <${Figure} label="failed" value=${compact(counts.failed)} tone=${counts.failed ? "bad" : ""} to=${href("tasks", { status: "failed" })} title=${count(counts.failed)} />
    <${Figure} label=${more ? `workers, ${more}` : "workers"} value=${count(active)} tone=${active ? "" : "bad"} to=${href("workers")} />
    <${Figure} label="slots in use" value=${`${count(overview.slots_used)} / ${count(overview.slots)}`} />
    <${Figure} label=${overview.paused_jobs ? `jobs, ${count(overview.paused_jobs)} paused` : "jobs"} value=${count(overview.jobs)} to=${href("jobs")} />
  </section>`;
}

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
  return html`<div class="heading"><h2>The last ${view.label}</h2>${choice}</div><div class="columns plots">
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
  return html`<${Section} title=${`Tasks per ${per}`}><${Plot} times=${times} series=${series} range=${range} sync="overview" least=${4} incrs=${WHOLE} summary=${summary} />
    <p class="help">${summary}</p><//>`;
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
    return html`<${Section} title=${title}><${Plot} times=${times} series=${series} range=${range} sync="overview" least=${1} incrs=${DURATIONS} format=${duration} summary=${summary} />
      <p class="help">${summary}</p><//>`;
  };
const Waiting = durations("waiting", "Waiting time", ["was claimed", "waited"]);
const Running = durations("running", "Running time", ["ended", "ran"]);

function Causes({ intervals, label }) {
  const causes = causesOf(intervals).slice(0, 8);
  const highest = causes[0]?.[1] ?? 1;
  return html`<${Section} title="Why attempts failed">${causes.length
    ? html`<ul class="bars">${causes.map(([code, size]) => html`<li key=${code}>
        <a href=${href("tasks", { error_code: code, since: "1h" })}>${code}</a><span>${count(size)}</span>
        <meter min="0" max=${highest} value=${size} aria-label=${`${code}: ${size}`}></meter></li>`)}</ul>`
    : html`<${Empty}>No attempt failed in the last ${label}.<//>`}
    <p class="help">${plural(sumOf(intervals, "retried"), "failed attempt was", "failed attempts were")} repeated, ${plural(sumOf(intervals, "lost"), "attempt was", "attempts were")} lost, because a worker went away or time ran out.</p><//>`;
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
