// The filter of tasks in the address, and as the API wants it.
import { canReadAll, ownRoom } from "../auth.js";
import { html, useId } from "../lib.js";
import { route, setQuery } from "../router.js";
import { ChoiceFilter, Filters, SetFilter, STATUSES, TextFilter } from "../ui.js";

const LISTS = ["status", "job", "version", "room", "error_code"];
const SINGLE = ["worker", "created_by", "text", "since", "until"];
export const NAMES = [...LISTS, ...SINGLE];
const PERIODS = { "15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800 };

const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

// A moment as the API wants it: of a period before now, of a local time, or as it is.
function moment(text) {
  if (PERIODS[text]) return new Date(Date.now() - PERIODS[text] * 1000).toISOString();
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

// The filter of the address. A caller without `all:read` sees its room only.
export function filterOf(query) {
  const filter = {};
  for (const name of LISTS) {
    const values = query.getAll(name).flatMap(split);
    if (values.length) filter[name] = name === "version" ? values.map(Number) : values;
  }
  for (const name of SINGLE) {
    const value = query.get(name);
    if (value) filter[name] = name === "since" || name === "until" ? moment(value) : value;
  }
  if (!canReadAll.value && !filter.room && ownRoom.value) filter.room = [ownRoom.value];
  return filter;
}

// What identifies the filter; "the last hour" stays the same while time goes on.
export const keyOf = (query) => JSON.stringify([...NAMES.map((name) => query.getAll(name)), ownRoom.value]);
export const isFiltered = (query, names = NAMES) => names.some((name) => query.getAll(name).some(Boolean));
export const clear = () => setQuery({ ...Object.fromEntries(NAMES.map((name) => [name, null])), cursor: null });

function Until() {
  const id = useId();
  const value = route.value.query.get("until") ?? "";
  return html`<div class="field"><label for=${id}>Created until</label>
    <input id=${id} type="datetime-local" value=${value} onChange=${(event) => setQuery({ until: event.target.value, cursor: null })} /></div>`;
}

// `counts` of the statuses, if they are those of all tasks that the filter finds.
export function TaskFilters({ counts }) {
  const { query } = route.value;
  const since = query.get("since") ?? "";
  const periods = [["", "any time"], ["15m", "15 minutes"], ["1h", "the last hour"], ["24h", "the last day"], ["7d", "the last week"]];
  if (since && !PERIODS[since]) periods.push([since, since]);
  const hasMore = ["version", "worker", "created_by", "error_code", "until"].some((name) => query.has(name));
  return html`<div class="card"><${Filters} label="Filter tasks">
    <${SetFilter} name="status" label="Status" values=${STATUSES} counts=${counts} />
    <${TextFilter} name="text" label="Text in payload or error" isFirst />
    <${TextFilter} name="job" label="Job" placeholder="room:category:name" />
    <${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} />
    <${ChoiceFilter} name="since" label="Created in" options=${periods} />
    <details class="more" open=${hasMore}><summary>More</summary><div>
      <${TextFilter} name="version" label="Version of the job" placeholder="1" />
      <${TextFilter} name="error_code" label="Error code" />
      <${TextFilter} name="created_by" label="Submitter" />
      <${TextFilter} name="worker" label="Worker (id)" />
      <${Until} /></div></details>
    ${isFiltered(query) && html`<button type="button" class="plain small" onClick=${clear}>Clear</button>`}<//></div>`;
}
