// The filter of tasks in the address, and as the API wants it.
import { canReadAll, ownRoom } from "../auth.js";
import { count, exact, momentOf, MOMENTS, shortId } from "../format.js";
import { html, useId } from "../lib.js";
import { usePoll } from "../live.js";
import { href, route, setQuery } from "../router.js";
import { ChoiceFilter, Filters, isNarrow, nameOfWorker, SetFilter, STATUSES, SuggestingFilter, TextFilter } from "../ui.js";
import { jobNames, matchesOf, MAX_ROOMS, roomNames, tagNames, wholeOf, workerNames } from "./suggestions.js";

const LISTS = ["status", "job", "version", "room", "error_code", "exception", "tag"];
const SINGLE = ["worker", "created_by", "text", "since", "until", "scheduled", "group", "parent", "root"];
export const NAMES = [...LISTS, ...SINGLE];
const PERIODS = { "15m": "15 minutes", "1h": "the last hour", "24h": "the last day", "7d": "the last week", "30d": "30 days" };
const MAX_TEXT = 200;
const MAX_TAG = 64;
export const IS_ID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;
const SHOWN = ["job", "room", "worker", "since"];
// The names of which a part is enough: what reads all of them, and what a whole one looks like.
const NAMED = {
  job: { load: jobNames, whole: /^[^:]+:[^:]+:./ },
  worker: { load: workerNames, whole: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i },
};

const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
const isTime = (name) => name === "since" || name === "until";

// The values of the address by name, as texts. A caller without `all:read` sees its room only.
function textsOf(query) {
  const texts = {};
  for (const name of LISTS) texts[name] = name === "tag" ? query.getAll(name) : query.getAll(name).flatMap(split); // a tag may have commas
  for (const name of SINGLE) texts[name] = query.get(name) ? [query.get(name)] : [];
  if (!canReadAll.value && !texts.room.length && ownRoom.value) texts.room = [ownRoom.value];
  return texts;
}

// The filter of the API; periods end now.
function filterOf(texts) {
  const filter = {};
  for (const [name, values] of Object.entries(texts).filter(([, values]) => values.length)) {
    if (name === "version") filter[name] = values.map(Number);
    else if (LISTS.includes(name)) filter[name] = values;
    else filter[name] = isTime(name) ? momentOf(values[0], -1) : name === "scheduled" ? values[0] === "true" : values[0];
  }
  return filter;
}

const quoted = (text) => `“${text}”`;
// Why a value cannot be used, by the name of its field.
const FAULTS = {
  status: (text) => !STATUSES.includes(text) && `${quoted(text)} is no status. Choose one of those above.`,
  version: (text, texts) => /^[1-9]\d*$/.test(text) ? !texts.job.length && "Versions are those of a job: choose a job too." : `${quoted(text)} is no version. Write a number, such as 1.`,
  scheduled: (text) => !["true", "false"].includes(text) && `${quoted(text)} is neither true nor false.`,
  tag: (text) => text.length > MAX_TAG && `A tag has at most ${MAX_TAG} characters.`,
  group: (text) => !IS_ID.test(text) && `${quoted(text)} is no whole id of a group.`,
  parent: (text) => !IS_ID.test(text) && `${quoted(text)} is no whole id of a task.`,
  root: (text) => !IS_ID.test(text) && `${quoted(text)} is no whole id of a task.`,
  text: (text) => text.length > MAX_TEXT && `This text is longer than ${MAX_TEXT} characters. Shorten it.`,
  since: (text) => !momentOf(text, -1) && `${quoted(text)} is no time. Choose a period, or write ${MOMENTS}.`,
  until: (text) => !momentOf(text, -1) && `${quoted(text)} is no time. Choose a day and a time.`,
};

// Replace parts of names by the names that they mean; return what is wrong with the others, with what may be meant.
function named(name, texts, options) {
  const faults = [];
  texts[name] = texts[name].map((text) => {
    if (NAMED[name].whole.test(text)) return text;
    const { matches, near } = matchesOf(text, options);
    if (matches.length === 1) return matches[0][0];
    faults.push(matches.length ? { name, text, message: `${count(matches.length)} ${name}s are called like ${quoted(text)}:`, near: matches }
      : { name, text, message: `No ${name} like ${quoted(text)}.${near.length ? " Did you mean:" : ` Look at the list of ${name}s, or remove the filter.`}`, near });
    return text;
  });
  return faults;
}

// The filter of the address: `filter()` is as the API wants it, unless there are `faults`: [{ name, text, message, near }, …].
// `isReady` is false while names are looked up; `key` identifies the filter: "the last hour" stays the same while time goes on.
export function useFilter(query) {
  const texts = textsOf(query);
  const sought = Object.keys(NAMED).filter((name) => texts[name].some((text) => !NAMED[name].whole.test(text)));
  const names = usePoll(() => Promise.all(sought.map((name) => NAMED[name].load())), [sought, ownRoom.value], null);
  const isReady = !sought.length || names.data !== null;
  const faults = isReady ? sought.flatMap((name, index) => named(name, texts, names.data[index])) : [];
  for (const [name, faultOf] of Object.entries(FAULTS)) {
    for (const text of texts[name]) {
      const message = faultOf(text, texts);
      if (message) faults.push({ name, text, message, near: [] });
    }
  }
  return { filter: () => filterOf(texts), faults, isReady, key: JSON.stringify([texts, ownRoom.value, isReady]) };
}

const LABELS = { parent: "submitted by task", root: "below task", created_by: "submitter", error_code: "error code", since: "created since", until: "created until" };

// A filter of the API in words.
export function filterWords(filter) {
  const words = Object.entries(filter).filter(([, value]) => value?.length !== 0).map(([name, value]) => {
    if (name === "scheduled") return value ? "scheduled" : "not scheduled";
    const values = [value].flat().map((item) => (isTime(name) ? exact(item) : name === "worker" ? nameOfWorker(item) ?? shortId(item) : ["group", "parent", "root"].includes(name) ? shortId(item) : name === "text" ? quoted(item) : item));
    return `${LABELS[name] ?? name} ${values.join(" or ")}`;
  });
  return words.join(", ") || "all tasks";
}

export const isFiltered = (query, names = NAMES) => names.some((name) => query.getAll(name).some(Boolean));
const clear = () => setQuery({ ...Object.fromEntries(NAMES.map((name) => [name, null])), cursor: null, from: null });

function Until() {
  const id = useId();
  const until = momentOf(route.value.query.get("until") ?? "", -1);
  const at = new Date(until);
  // The field has local times, the address has those of UTC.
  const value = until ? new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
  return html`<div class="field"><label for=${id}>Created until</label>
    <input id=${id} type="datetime-local" value=${value} onChange=${(event) => setQuery({ until: event.target.value && momentOf(event.target.value), cursor: null, from: null })} /></div>`;
}

// What cannot be used of the filter, and what to use instead.
export const Faults = ({ faults }) => faults.length > 0 && html`<div class="choice faults" role="status">${faults.map(({ name, text, message, near }) => {
  const use = (value) => setQuery({ [name]: route.value.query.getAll(name).flatMap(split).flatMap((part) => (part === text ? value : part)), cursor: null, from: null });
  return html`<p key=${name + text}><strong>${FIELDS[name]}:</strong> ${message} ${near.slice(0, 8).map(([value, label]) => html`
    <button key=${value} type="button" class="small" title=${value} onClick=${() => use(value)}>${near.some(([other, same]) => same === label && other !== value) ? `${label} ${shortId(value)}` : label}</button> `)}
    <button type="button" class="plain small" onClick=${() => (LISTS.includes(name) ? use([]) : setQuery({ [name]: null, cursor: null, from: null }))}>Remove</button></p>`;
})}</div>`;
const FIELDS = { tag: "Tag", group: "Group", parent: "Submitted by task", root: "Below task", status: "Status", job: "Job", worker: "Worker", version: "Version of the job", scheduled: "Due", text: "Text", since: "Created in", until: "Created until" };

// What to say of a list without a task: also that no job has such a name.
export function NoMatch({ jobs = [] }) {
  const names = usePoll(() => (jobs.length ? jobNames() : []), [jobs], null).data ?? [];
  const unknown = names.length ? jobs.filter((job) => !names.some(([name]) => name === job)) : [];
  return html`No task matches this filter.${unknown.map((job) => {
    const { near } = matchesOf(job, names);
    return html` No job is called ${quoted(job)}.${near.length > 0 && html` Did you mean: ${near.map(([name]) => html`<a key=${name} class="name" href=${href("tasks", { job: name })}>${name}</a> `)}`}`;
  })}`;
}

// `counts` of the statuses, if they are those of all tasks that the filter finds.
export function TaskFilters({ counts }) {
  const { query } = route.value;
  const since = query.get("since") ?? "";
  const periods = [["", "any time"], ...Object.entries(PERIODS)];
  const at = since && momentOf(since, -1);
  if (since && !PERIODS[since]) periods.push([since, !at || since.length < 8 ? since : `since ${exact(at)}`]);
  const hasMore = ["tag", "group", "parent", "root", "version", "created_by", "error_code", "exception", "until", "scheduled"].some((name) => query.has(name));
  const fields = html`
    <${SuggestingFilter} name="job" label="Job" placeholder="name, or a part of it" load=${jobNames} wholeOf=${wholeOf} />
    <${SuggestingFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} load=${roomNames} wholeOf=${(text, options) => (options.length < MAX_ROOMS ? wholeOf(text, options) : text)} />
    <${SuggestingFilter} name="worker" label="Worker" placeholder="name, id, or a part" load=${workerNames} wholeOf=${wholeOf} />
    <${ChoiceFilter} name="since" label="Created in" options=${periods} />`;
  const rest = html`
    <${SuggestingFilter} name="tag" label="Tag" load=${tagNames} wholeOf=${(text) => text} />
    <${TextFilter} name="group" label="Group" placeholder="id" />
    <${TextFilter} name="version" label="Version of the job" placeholder="1" />
    <${TextFilter} name="error_code" label="Error code" />
    <${TextFilter} name="exception" label="Exception" placeholder="ValueError" />
    <${TextFilter} name="created_by" label="Submitter" />
    <${TextFilter} name="parent" label="Submitted by task" placeholder="id" />
    <${TextFilter} name="root" label="Below task" placeholder="id of the first one" />
    <${ChoiceFilter} name="scheduled" label="Due" options=${[["", "at any time"], ["true", "later: scheduled"], ["false", "now"]]} />
    <${Until} />`;
  return html`<div class="card"><${Filters} label="Filter tasks">
    <${SetFilter} name="status" label="Status" values=${STATUSES} counts=${counts} />
    <${TextFilter} name="text" label="Text in payload or error" isFirst />
    ${isNarrow.value ? html`<details class="more" open=${hasMore || SHOWN.some((name) => query.has(name))}><summary>More</summary><div>${fields}${rest}</div></details>`
      : html`${fields}<details class="more" open=${hasMore}><summary>More</summary><div>${rest}</div></details>`}
    ${isFiltered(query) && html`<button type="button" class="plain small" onClick=${clear}>Clear</button>`}<//></div>`;
}
