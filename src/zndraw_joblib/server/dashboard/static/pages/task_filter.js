// The filter of tasks in the address, and as the API wants it.
import { canReadAll, ownRoom } from "../auth.js";
import { exact } from "../format.js";
import { html, useId } from "../lib.js";
import { route, setQuery } from "../router.js";
import { ChoiceFilter, Filters, isNarrow, SetFilter, STATUSES, SuggestingFilter, TextFilter } from "../ui.js";
import { jobNames, roomNames, workerNames } from "./suggestions.js";

const LISTS = ["status", "job", "version", "room", "error_code", "exception"];
const SINGLE = ["worker", "created_by", "text", "since", "until", "scheduled"];
export const NAMES = [...LISTS, ...SINGLE];
const PERIODS = { "15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 };

const SHOWN = ["job", "room", "worker", "since"];

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
    if (value) filter[name] = name === "since" || name === "until" ? moment(value) : name === "scheduled" ? value === "true" : value;
  }
  if (!canReadAll.value && !filter.room && ownRoom.value) filter.room = [ownRoom.value];
  return filter;
}

// What identifies the filter; "the last hour" stays the same while time goes on.
export const keyOf = (query) => JSON.stringify([...NAMES.map((name) => query.getAll(name)), ownRoom.value]);
export const isFiltered = (query, names = NAMES) => names.some((name) => query.getAll(name).some(Boolean));
export const clear = () => setQuery({ ...Object.fromEntries(NAMES.map((name) => [name, null])), cursor: null, from: null });

function Until() {
  const id = useId();
  const until = moment(route.value.query.get("until") ?? "");
  const at = new Date(until);
  // The field has local times, the address has those of UTC.
  const value = until && !Number.isNaN(at.getTime()) ? new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
  return html`<div class="field"><label for=${id}>Created until</label>
    <input id=${id} type="datetime-local" value=${value} onChange=${(event) => setQuery({ until: event.target.value && moment(event.target.value), cursor: null, from: null })} /></div>`;
}

// `counts` of the statuses, if they are those of all tasks that the filter finds.
export function TaskFilters({ counts }) {
  const { query } = route.value;
  const since = query.get("since") ?? "";
  const periods = [["", "any time"], ["15m", "15 minutes"], ["1h", "the last hour"], ["24h", "the last day"], ["7d", "the last week"], ["30d", "30 days"]];
  if (since && !PERIODS[since]) periods.push([since, `since ${Number.isNaN(Date.parse(since)) ? since : exact(since)}`]);
  const hasMore = ["version", "created_by", "error_code", "exception", "until", "scheduled"].some((name) => query.has(name));
  const fields = html`
    <${SuggestingFilter} name="job" label="Job" placeholder="room:category:name" load=${jobNames} />
    <${SuggestingFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} load=${roomNames} />
    <${SuggestingFilter} name="worker" label="Worker" placeholder="name or id" load=${workerNames} />
    <${ChoiceFilter} name="since" label="Created in" options=${periods} />`;
  const rest = html`
    <${TextFilter} name="version" label="Version of the job" placeholder="1" />
    <${TextFilter} name="error_code" label="Error code" />
    <${TextFilter} name="exception" label="Exception" placeholder="ValueError" />
    <${TextFilter} name="created_by" label="Submitter" />
    <${ChoiceFilter} name="scheduled" label="Due" options=${[["", "at any time"], ["true", "later: scheduled"], ["false", "now"]]} />
    <${Until} />`;
  return html`<div class="card"><${Filters} label="Filter tasks">
    <${SetFilter} name="status" label="Status" values=${STATUSES} counts=${counts} />
    <${TextFilter} name="text" label="Text in payload or error" isFirst />
    ${isNarrow.value ? html`<details class="more" open=${hasMore || SHOWN.some((name) => query.has(name))}><summary>More</summary><div>${fields}${rest}</div></details>`
      : html`${fields}<details class="more" open=${hasMore}><summary>More</summary><div>${rest}</div></details>`}
    ${isFiltered(query) && html`<button type="button" class="plain small" onClick=${clear}>Clear</button>`}<//></div>`;
}
