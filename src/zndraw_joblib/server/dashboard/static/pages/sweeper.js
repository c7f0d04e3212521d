// The sweeper removes silent workers and recovers their tasks: its mode, its servers, its cycles, what it would do now.
import { act, get } from "../api.js";
import { canOperate } from "../auth.js";
import { count, duration, plural, shortId } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { Ago, ask, Badge, Button, Empty, Facts, Failure, Loaded, Page, Section, Status, Table, TaskLink, toast, WorkerLink } from "../ui.js";

const MODES = {
  enforce: { text: "It removes silent workers and recovers their tasks.", tone: "good" },
  observe: { text: "It only logs what it would do.", tone: "warn", warning: "Tasks of lost workers stay claimed or running until it enforces again." },
  off: { text: "It does nothing.", tone: "bad", warning: "Nothing recovers the tasks of lost workers, and nothing deletes old tasks, until it is on again." },
};
const MAX_CYCLES = 50;

export function Sweeper() {
  const state = usePoll((signal) => get("/admin/sweeper", {}, { signal }));
  return html`<${Page} title="Sweeper"><${Loaded} state=${state}>${(sweeper) => html`
    <${Mode} sweeper=${sweeper} reload=${state.reload} />
    <${Preview} />
    ${sweeper.servers && html`<${Servers} servers=${sweeper.servers} />`}
    <${Cycles} sweeper=${sweeper} />`}<//><//>`;
}

function Mode({ sweeper, reload }) {
  const isBusy = useSignal(false);
  const change = async (mode) => {
    if (mode === sweeper.mode || isBusy.value) return;
    const { text, warning } = MODES[mode];
    const question = { title: `Set the sweeper to ${mode}?`, body: `${text} ${warning ?? ""} This applies to all servers from their next cycle on.`, action: `Set to ${mode}`, tone: warning ? "danger" : "primary" };
    if (!(await ask(question))) return;
    isBusy.value = true;
    try {
      await act("PATCH", "/admin/sweeper", { mode });
      toast(`The sweeper's mode is ${mode}.`);
      reload();
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      isBusy.value = false;
    }
  };
  const { mode } = sweeper;
  const choice = canOperate.value && html`<div class="set" role="group" aria-label="Mode"><div>${Object.keys(MODES).map((name) => html`
    <button key=${name} type="button" class="chip" aria-pressed=${name === mode ? "true" : "false"} onClick=${() => change(name)}>${name}</button>`)}</div></div>`;
  return html`<${Section} title="Mode" actions=${choice}><${Facts} items=${[
    ["In force for all servers", html`<${Badge} tone=${MODES[mode]?.tone}>${mode}<//> ${MODES[mode]?.text}`, "wide"],
    ["A cycle every", duration(sweeper.interval_seconds)],
    ["Expires workers", sweeper.grace_remaining_seconds > 0 ? `not for ${duration(sweeper.grace_remaining_seconds)} more: the server has just started` : "now"],
  ]} /><//>`;
}

// What a cycle would do now, on demand: it reads as much as a cycle does.
function Preview() {
  const preview = useSignal(null);
  const error = useSignal(null);
  const read = async () => {
    try {
      preview.value = { ...await get("/admin/sweeper/preview"), at: new Date().toISOString() };
      error.value = null;
    } catch (problem) {
      error.value = problem;
    }
  };
  const columns = [
    { name: "id", label: "Task", render: (task) => html`<${TaskLink} id=${task.id} />` },
    { name: "before", label: "Now", render: (task) => html`<${Status} status=${task.before} />` },
    { name: "after", label: "Then", render: (task) => html`<${Status} status=${task.after} />` },
    { name: "reason", label: "Reason", render: (task) => html`<code>${task.reason}</code>` },
    { name: "due", label: "Due", render: (task) => html`<${Ago} at=${task.run_at} />` },
  ];
  const plan = preview.value;
  return html`<${Section} title="What a cycle would do now" class="wide" actions=${html`<${Button} class="small" onClick=${read}>${plan ? "Read again" : "Preview"}<//>`}>
    <${Failure} error=${error.value} />
    ${!plan ? html`<p class="help">The preview changes nothing. It shows at most one batch of each kind.</p>` : html`
      <p>${plan.workers.length || plan.tasks.length ? html`<strong>${plural(plan.workers.length, "worker")}</strong> would be removed, <strong>${plural(plan.tasks.length, "task")}</strong> changed.` : "Nothing."}
        ${" "}<span class="help">Read <${Ago} at=${plan.at} />; ${plural(plan.scanned, "worker")}, ${count(plan.stale)} silent for too long.</span></p>
      ${plan.workers.length > 0 && html`<p class="links">${plan.workers.slice(0, 50).map((id) => html`<${WorkerLink} key=${id} id=${id} />`)}${plan.workers.length > 50 && html`<span class="help">and ${count(plan.workers.length - 50)} more</span>`}</p>`}
      ${plan.tasks.length > 0 && html`<${Table} caption="Tasks that would change" columns=${columns} rows=${plan.tasks.slice(0, 200)} />`}`}<//>`;
}

function Servers({ servers }) {
  const columns = [
    { name: "host", label: "Server", render: (server) => html`${server.host} <span class="help">pid ${server.pid}</span>` },
    { name: "state", label: "State", render: (server) => html`<${Badge} tone=${server.is_silent ? "bad" : "good"} title=${server.is_silent ? "Its sweeper has not reported for three intervals" : undefined}>${server.is_silent ? "silent" : "running"}<//>` },
    { name: "mode", label: "Mode", render: (server) => server.sweeper_mode ?? html`<span class="none">–</span>` },
    { name: "interval", label: "Interval", class: "number", render: (server) => duration(server.sweep_interval_seconds) },
    { name: "grace", label: "Grace period", class: "number", render: (server) => server.grace_remaining_seconds ? duration(server.grace_remaining_seconds) : html`<span class="none">–</span>` },
    { name: "good", label: "Last good cycle", render: (server) => html`<${Ago} at=${server.last_good_at} />` },
    { name: "started", label: "Started", render: (server) => html`<${Ago} at=${server.started_at} />` },
    { name: "version", label: "Version", render: (server) => server.version },
  ];
  return html`<${Section} title="Servers" class="wide"><${Table} caption="Servers" columns=${columns} rows=${servers} empty="No server has reported yet." /><//>`;
}

const DID = ["expired", "released", "failed", "pruned"];
const isEventful = (cycle) => cycle.errors > 0 || cycle.held_back || cycle.stale > 0 || DID.some((name) => cycle[name] > 0);

function Cycles({ sweeper }) {
  const showsAll = useSignal(false);
  const all = sweeper.history ?? sweeper.cycles;
  const shown = (showsAll.value ? all : all.filter(isEventful)).slice(0, MAX_CYCLES);
  const hosts = Object.fromEntries((sweeper.servers ?? []).map((server) => [server.id, `${server.host} (${server.pid})`]));
  const number = (name, label, tone = "") => ({ name, label, class: "number", render: (cycle) => cycle[name] ? html`<span class=${tone}>${count(cycle[name])}</span>` : html`<span class="none">0</span>` });
  const columns = [
    { name: "at", label: "At", render: (cycle) => html`<${Ago} at=${cycle.at} />` },
    sweeper.history && { name: "server", label: "Server", render: (cycle) => hosts[cycle.server_id] ?? html`<span class="id" title=${cycle.server_id}>${shortId(cycle.server_id)}</span>` },
    { name: "mode", label: "Mode", render: (cycle) => html`${cycle.mode ?? html`<${Badge} tone="bad">unknown<//>`} ${cycle.held_back && html`<${Badge} tone="bad" title="The mass-expiry guard stopped it: most workers would have expired at once">held back<//>`}` },
    number("scanned", "Workers"), number("stale", "Silent", "warn"), number("expired", "Removed", "warn"),
    number("released", "Tasks released"), number("failed", "Tasks failed", "error"), number("pruned", "Tasks deleted"), number("errors", "Errors", "error"),
    { name: "elapsed", label: "Took", class: "number", render: (cycle) => duration(cycle.elapsed) },
  ].filter(Boolean);
  const choice = html`<label class="check"><input type="checkbox" checked=${showsAll.value} onChange=${(event) => (showsAll.value = event.target.checked)} /> quiet cycles too</label>`;
  return html`<${Section} title="Last cycles" class="wide" actions=${choice}>${!shown.length && all.length
    ? html`<${Empty}>The last ${plural(all.length, "cycle")} had nothing to do; the newest was <${Ago} at=${all[0].at} />.<//>`
    : html`<${Table} caption="Last cycles" columns=${columns} rows=${shown} rowKey=${(cycle) => `${cycle.at}${cycle.server_id ?? ""}`} empty="No cycle has run yet." />`}<//>`;
}
