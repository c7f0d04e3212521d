// The audit trail: which operator changed what, newest first.
import { canReadAll, ownRoom } from "../auth.js";
import { count, exact } from "../format.js";
import { Exact, parse } from "../json.js";
import { html } from "../lib.js";
import { href, route } from "../router.js";
import { Ago, ChoiceFilter, Copy, Filters, JobLink, ListPage, RoomLink, TextFilter, WorkerLink } from "../ui.js";
import { filterWords } from "./task_filter.js";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-/;
const ACTIONS = {
  "job.pause": "paused a job", "job.resume": "resumed a job", "job.put": "registered a job", "job.delete": "forgot a job",
  "job.schema": "changed the schema of a job", "job.policy": "changed the policy of a job",
  "room.pause": "paused a room", "room.resume": "resumed a room", "rooms.pause": "paused all rooms", "rooms.resume": "resumed all rooms",
  "limit.put": "defined a limit", "limit.delete": "deleted a limit",
  "schedule.put": "wrote a schedule", "schedule.pause": "paused a schedule", "schedule.resume": "resumed a schedule", "schedule.delete": "deleted a schedule",
  "webhook.put": "wrote a webhook", "webhook.delete": "deleted a webhook", "webhook.test": "tested a webhook", "webhook.repeat": "repeated a delivery",
  "webhook.disable": "disabled a webhook",
  "task.retry": "retried a task", "task.run-now": "ran a task before its time", "task.release": "released a task", "task.cancel": "cancelled a task", "task.fail": "failed a task",
  "task.cancel-tree": "cancelled a task and those below it",
  "bulk.retry": "retried all tasks that match", "bulk.cancel": "cancelled all tasks that match", "bulk.release": "released all tasks that match",
  "bulk.purge": "purged all tasks that match", "bulk.retarget": "retargeted all tasks that match",
  "worker.drain": "drained a worker", "worker.remove": "removed a worker", "sweeper.mode": "changed the mode of the sweeper",
};
const columns = [
  { name: "at", label: "When", render: (entry) => html`<${Ago} at=${entry.at} />` },
  { name: "actor", label: "Who", render: (entry) => html`<span class="name">${entry.actor}</span>` },
  { name: "action", label: "Action", render: (entry) => html`<span title=${entry.action}>${ACTIONS[entry.action] ?? entry.action}</span>` },
  { name: "target", label: "Target", render: (entry) => html`<${Target} entry=${entry} />` },
  { name: "room", label: "Room", render: (entry) => entry.room_id ? html`<${RoomLink} id=${entry.room_id} />` : html`<span class="none">–</span>` },
  { name: "detail", label: "Detail", render: (entry) => html`<${Detail} detail=${entry.detail} />` },
  { name: "request", label: "Request", render: (entry) => entry.request_id ? html`<${Copy} text=${entry.request_id} label="Copy id" />` : html`<span class="none">–</span>` },
];

export function Audit() {
  const present = route.value.query.get("action");
  const actions = [["", "any"], ...Object.entries(ACTIONS), ...(present && !ACTIONS[present] ? [[present, present]] : [])];
  return html`<${ListPage} title="Audit trail" path="/audit" caption="Actions" columns=${columns} rowKey=${(entry) => entry.n}
    filters=${["room", "actor", "action"]} laterSeconds=${30} needsRoom="You see the actions in rooms that you may read."
    form=${html`<${Filters} label="Filter actions"><${ChoiceFilter} name="action" label="Action" options=${actions} />
      <${TextFilter} name="actor" label="Who" isFirst /><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} /><//>
      <p class="help">Recorded is what superusers do to jobs, rooms, limits, schedules, the sweeper and all tasks that match a filter, and to tasks and workers of others; and
        registrations that change a job, and all changes of webhooks. What users, and superusers, do to their own tasks and workers one by one is not recorded.</p>`}
    empty="Nothing has been recorded yet." emptyIfFiltered="No action matches this filter." />`;
}

function Target({ entry: { action, target } }) {
  const [kind] = action.split(".");
  if (kind === "job") return html`<${JobLink} name=${target} />`;
  if (kind === "sweeper") return html`<a href=${href("sweeper")}>${target}</a>`;
  if (kind === "worker" && ID.test(target)) return html`<${WorkerLink} id=${target} />`;
  if (kind === "task" && ID.test(target)) return html`<a class="id" href=${href(["tasks", target])} title=${target}>${target.slice(0, 8)}</a>`;
  if (kind === "bulk") return html`<span class="name">${filterWords(filterIn(target))}</span>`;
  return html`<span class="name">${target}</span>`;
}

function filterIn(text) {
  try {
    return parse(text);
  } catch {
    return { filter: text };
  }
}

const IS_MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;

// A value in words: names and values of an object, moments in the zone of the browser.
function words(value) {
  if (typeof value === "number") return count(value);
  if (typeof value === "string") return IS_MOMENT.test(value) ? exact(value) : value;
  if (Array.isArray(value)) return value.map(words).join(", ") || "none";
  if (value === null || typeof value !== "object" || value instanceof Exact) return value === null ? "none" : String(value);
  return Object.entries(value).filter(([, part]) => part !== null).map(([name, part]) => `${name.replaceAll("_", " ")} ${isPlain(part) ? words(part) : `(${words(part)})`}`).join(", ");
}
const isPlain = (value) => value === null || typeof value !== "object" || value instanceof Exact;

function Detail({ detail }) {
  const text = words(detail ?? {});
  return text ? html`<span class="name">${text}</span>` : html`<span class="none">–</span>`;
}
