// Two tasks of a job side by side: in which parts of the payload and of the result they differ.
import { get } from "../api.js";
import { canReadAll } from "../auth.js";
import { between, duration, preview, shortId } from "../format.js";
import { html, useId } from "../lib.js";
import { stringify } from "../json.js";
import { usePoll } from "../live.js";
import { href, route, setQuery } from "../router.js";
import { Empty, Loaded, Section, Table } from "../ui.js";

const MAX_DIFFERENCES = 200;
const MAX_SHOWN = 300;
const isGroup = (value) => value !== null && typeof value === "object" && value.text === undefined;

// Return the places where two values differ: [{ path, one, other }]. A value that is not there is undefined.
export function differences(one, other, path = "", places = []) {
  if (places.length >= MAX_DIFFERENCES) return places;
  if (isGroup(one) && isGroup(other) && Array.isArray(one) === Array.isArray(other)) {
    for (const key of new Set([...Object.keys(one), ...Object.keys(other)])) {
      differences(one[key], other[key], path ? `${path}.${key}` : key, places);
    }
  } else if (stringify(one ?? null) !== stringify(other ?? null) || (one === undefined) !== (other === undefined)) places.push({ path, one, other });
  return places;
}

function Value({ value }) {
  if (value === undefined) return html`<span class="none">not there</span>`;
  const text = stringify(value);
  return html`<code title=${text.slice(0, 2000)}>${text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text}</code>`;
}

const factsOf = (task) => ({ status: task.status, ran: duration(between(task.started_at, task.completed_at)), attempts: task.attempts, version: task.version, error: task.error ?? undefined });

export function Compare({ task }) {
  const id = useId();
  const withId = route.value.query.get("with") ?? "";
  const others = usePoll((signal) => get("/tasks", { job: task.job_name, room: canReadAll.value ? undefined : task.room_id, limit: 20 }, { signal }), [task.job_name, task.room_id], null);
  const other = usePoll((signal) => (withId ? get(`/tasks/${encodeURIComponent(withId)}`, {}, { signal }) : null), [withId], 60);
  const choose = ({ target }) => setQuery({ with: target.value });
  const items = (others.data?.items ?? []).filter((item) => item.id !== task.id);
  const choice = html`<label for=${id}>with</label> <select id=${id} value=${withId} onChange=${choose}>
    <option value="">choose a task of this job …</option>
    ${withId && !items.some((item) => item.id === withId) && html`<option value=${withId}>${shortId(withId)}</option>`}
    ${items.map((item) => html`<option key=${item.id} value=${item.id}>${item.status}, ${shortId(item.id)}: ${preview(item.payload_preview).slice(0, 50)}</option>`)}</select>`;
  if (!withId && !items.length) return null;
  return html`<${Section} title="Compare" class="wide compare" actions=${choice}>${withId && html`<${Loaded} state=${other} missing=${`There is no task ${withId}.`}>${(second) =>
    second && html`<${Differences} task=${task} other=${second} />`}<//>`}<//>`;
}

function Differences({ task, other }) {
  const places = [
    ...differences(factsOf(task), factsOf(other)),
    ...differences(task.payload, other.payload, "payload"),
    ...differences(task.result ?? undefined, other.result ?? undefined, "result"),
  ];
  if (!places.length) return html`<${Empty}>They have the same payload and result.<//>`;
  const columns = [
    { name: "path", label: "Where", render: ({ path }) => html`<span class="name">${path}</span>` },
    { name: "one", label: "This task", class: "value", render: ({ one }) => html`<${Value} value=${one} />` },
    { name: "other", label: "The other", class: "value", render: ({ other: value }) => html`<${Value} value=${value} />` },
  ];
  return html`<p class="help">${places.length >= MAX_DIFFERENCES ? "The first differences" : "Differences"} from <a href=${href(["tasks", other.id])}>${shortId(other.id)}</a>.</p>
    <${Table} caption="Differences" columns=${columns} rows=${places} rowKey=${({ path }) => path} />`;
}
