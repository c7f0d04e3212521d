// Submit a task: a form made from the job's JSON Schema, or JSON. The server validates; its problems are at their fields.
import { act, get, newKey, Unreachable } from "../api.js";
import { canOperate, canReadAll, ownRoom } from "../auth.js";
import { between, duration, preview, shortId } from "../format.js";
import { parseExact, stringify } from "../json.js";
import { html, useEffect, useId, useMemo, useRef, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { go, route, setQuery } from "../router.js";
import { draftOf, nodeOf, placed, valueOf, withoutMasks } from "../schema.js";
import { Button, Failure, Section, toast } from "../ui.js";
import { applied, Field, Problems } from "./schema_fields.js";
import { roomNames } from "./suggestions.js";

// The room of tasks where none is named, as in the command line.
const DEFAULT_ROOM = "default";
const RESERVED = ["@global", "@internal"];
const OPTIONS = [
  ["priority", "Priority", "A higher one is claimed first"],
  ["delay_seconds", "Delay in seconds", "When it enters its queue"],
  ["expires_in_seconds", "Expires in seconds", "Fails if no worker claims it by then"],
  ["max_attempts", "Attempts", "Instead of the job's"],
  ["unique", "Unique key", "No second task with this key in the room", "text"],
];

const SECRET_LEFT_OUT = "The value of the earlier task is secret: enter it again.";

export const jobPath = (name) => encodeURIComponent(name).replaceAll("%3A", ":");

export function Submit({ job }) {
  const node = useMemo(() => nodeOf(job.schema ?? {}), [stringify(job.schema ?? {})]);
  const start = useMemo(() => (node.kind === "object" ? draftOf(node, undefined, true) : undefined), [node]);
  const draft = useSignal(start);
  const text = useSignal(start ? "" : "{}");
  const isJson = useSignal(!start);
  const room = useSignal(RESERVED.includes(job.room_id) ? ownRoom.value || DEFAULT_ROOM : job.room_id);
  const enteredRoom = useSignal(room.value);
  const options = useSignal({});
  const failure = useSignal(null);
  const lastTry = useRef(null);
  const form = useRef();
  // What is said of a field holds until the field changes, and what is said of none until any does.
  const edited = useSignal(new Set());
  const from = route.value.query.get("from");
  const shown = failure.value ? placesOf(failure.value, node, draft.value, isJson.value, edited.value) : { fields: {}, options: {}, rest: [] };

  const toJson = () => {
    const problems = [];
    const value = valueOf(node, draft.value, true, problems);
    if (problems.length) return fail({ problems });
    text.value = stringify(value, 2);
    failure.value = null;
    isJson.value = true;
    return undefined;
  };
  const toForm = () => {
    const problems = [];
    const value = payloadOf(text.value, problems);
    const next = problems.length ? undefined : draftOf(node, value);
    if (!next) return fail({ problems: problems.length ? problems : [{ pointer: "", message: "The form has no fields for these values; submit them as JSON." }] });
    draft.value = next;
    failure.value = null;
    isJson.value = false;
    return undefined;
  };
  // Fill the form with the payload of an earlier task. Its secret values are not in answers, so the form asks for them.
  useEffect(() => {
    if (!from) return undefined;
    const controller = new AbortController();
    const fill = (task) => {
      const { payload, pointers } = withoutMasks(job.schema ?? {}, task.payload);
      text.value = stringify(payload, 2);
      draft.value = start && draftOf(node, payload);
      isJson.value = isJson.value || !draft.value;
      if (canReadAll.value) room.value = enteredRoom.value = task.room_id;
      options.value = task.priority ? { ...options.value, priority: String(task.priority) } : options.value;
      failure.value = pointers.length ? { problems: pointers.map((pointer) => ({ pointer, message: SECRET_LEFT_OUT })) } : null;
      edited.value = new Set();
      form.current?.closest("section").scrollIntoView();
    };
    get(`/tasks/${encodeURIComponent(from)}`, {}, { signal: controller.signal }).then(fill, (error) => controller.signal.aborted || fail({ error }));
    return () => controller.abort();
  }, [from]);
  const edit = (pointer) => failure.value && (edited.value = new Set([...edited.value, pointer]));
  const fail = (faults) => {
    failure.value = faults;
    edited.value = new Set();
    setTimeout(() => form.current?.querySelector("[aria-invalid]")?.focus());
  };
  const send = async () => {
    const problems = [];
    const payload = isJson.value ? payloadOf(text.value, problems) : valueOf(node, draft.value, true, problems);
    const body = { payload };
    for (const [name, , , kind] of OPTIONS) {
      const entered = (options.value[name] ?? "").trim();
      if (kind === "text") entered && (body[name] = { key: entered });
      else if (entered && !Number.isFinite(Number(entered))) problems.push({ option: name, message: `${entered} is no number.` });
      else if (entered) body[name] = Number(entered);
    }
    if (problems.length) return fail({ problems });
    const content = `${enteredRoom.value}\n${stringify(body)}`;
    // The same task after a lost answer has the same key, so it is not submitted twice.
    lastTry.current = { content, key: lastTry.current?.content === content ? lastTry.current.key : newKey() };
    try {
      const task = await act("POST", `/rooms/${encodeURIComponent(enteredRoom.value.trim())}/tasks/${jobPath(job.full_name)}`, body, { key: lastTry.current.key });
      lastTry.current = null;
      toast(task.duplicate ? "This task holds the key: no other one was submitted." : "Submitted.");
      go(["tasks", task.id]);
    } catch (error) {
      if (!(error instanceof Unreachable)) lastTry.current = null;
      fail({ error });
    }
    return undefined;
  };
  const choice = start && html`<div class="set" role="group" aria-label="How to write the payload"><div>
    <button type="button" class="chip" aria-pressed=${isJson.value ? "false" : "true"} onClick=${() => isJson.value && toForm()}>Form</button>
    <button type="button" class="chip" aria-pressed=${isJson.value ? "true" : "false"} onClick=${() => isJson.value || toJson()}>JSON</button></div></div>`;
  const isUnedited = edited.value.size === 0;
  return html`<${Section} title="Submit a task" class="submit" actions=${choice}><form ref=${form} class="form" noValidate onSubmit=${(event) => event.preventDefault()}
    onInput=${({ target }) => edit(target.name)} onClick=${({ target }) => target.dataset.edits !== undefined && edit(`${target.dataset.edits}/`)}>
    ${job.schema?.description && html`<p class="text">${job.schema.description}</p>`}
    ${shown.rest.length > 0 && isUnedited && html`<div class="failure" role="alert"><strong>The task was not submitted</strong>
      ${shown.rest.map((message, index) => html`<p key=${index}>${message}</p>`)}</div>`}
    ${failure.value?.error && isUnedited && !isOfFields(failure.value.error) && html`<${Failure} error=${failure.value.error} />`}
    <${EarlierPayloads} job=${job} from=${from} />
    ${canReadAll.value && html`<${RoomField} entered=${enteredRoom} room=${room} />`}
    ${isJson.value
      ? html`<${JsonField} text=${text} messages=${shown.fields[""]} />`
      : html`<${Field} node=${node} pointer="" draft=${draft.value} problems=${shown.fields} room=${room.value.trim()} isRequired
          onChange=${(next) => (draft.value = applied(next, draft.value))} />`}
    <${Options} options=${options} problems=${shown.options} />
    <div class="actions"><${Button} tone="primary" onClick=${send} disabled=${!enteredRoom.value.trim()}>Submit<//>
      ${!enteredRoom.value.trim() && html`<span class="help">Name the room of the task.</span>`}</div>
  </form><//>`;
}

const MAX_EARLIER = 10;

// A choice of the last payloads of the job; the address has the task of the chosen one.
function EarlierPayloads({ job, from }) {
  const id = useId();
  const query = { job: job.full_name, room: canReadAll.value ? null : ownRoom.value, limit: 50 };
  const { data } = usePoll((signal) => get("/tasks", query, { signal }), [query], null);
  const seen = new Set();
  const tasks = (data?.items ?? []).filter(({ payload_preview: text }) => !seen.has(text) && seen.add(text)).slice(0, MAX_EARLIER);
  if (!tasks.length && !from) return null;
  return html`<div class="field"><label for=${id}>Start from</label>
    <select id=${id} value=${from ?? ""} onChange=${(event) => setQuery({ from: event.target.value })}>
      <option value="">the defaults of the job</option>
      ${from && !tasks.some((task) => task.id === from) && html`<option value=${from} selected>task ${shortId(from)}</option>`}
      ${tasks.map((task) => html`<option key=${task.id} value=${task.id} selected=${task.id === from}>${preview(task.payload_preview) || "an empty payload"} (${task.status}, ${duration(between(task.created_at, new Date()))} ago)</option>`)}</select></div>`;
}

// The choices of providers are read again when the field is left.
function RoomField({ entered, room }) {
  const id = useId();
  const names = useSignal([]);
  const suggest = async () => (names.value = await roomNames());
  return html`<div class="field"><label for=${id}>Room <span class="needed" title="required">*</span></label>
    <input id=${id} name="room" list=${`${id}-names`} value=${entered.value} autocomplete="off" spellcheck=${false} aria-required="true" onFocus=${suggest}
      onInput=${(event) => (entered.value = event.target.value)} onChange=${() => (room.value = entered.value)} />
    <datalist id=${`${id}-names`}>${names.value.map(([name]) => html`<option key=${name} value=${name} />`)}</datalist></div>`;
}

function JsonField({ text, messages }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>Payload</label>
    <textarea id=${id} name="" rows="12" spellcheck=${false} value=${text.value} onInput=${(event) => (text.value = event.target.value)}
      aria-invalid=${messages ? "true" : undefined} aria-describedby=${messages ? `${id}-problem` : undefined}></textarea>
    <${Problems} id=${`${id}-problem`} messages=${messages} /></div>`;
}

function Options({ options, problems }) {
  const id = useId();
  return html`<details class="options" open=${Object.keys(problems).length > 0 || undefined}><summary>Options</summary><div class="form two">
    ${OPTIONS.map(([name, label, help, kind]) => html`<div key=${name} class="field"><label for=${`${id}${name}`}>${label}</label>
      <input id=${`${id}${name}`} name=${name} type="text" inputmode=${kind ?? "decimal"} autocomplete="off" value=${options.value[name] ?? ""}
        aria-invalid=${problems[name] ? "true" : undefined} aria-describedby=${`${id}${name}-help${problems[name] ? ` ${id}${name}-problem` : ""}`}
        onInput=${(event) => (options.value = { ...options.value, [name]: event.target.value })} />
      <p id=${`${id}${name}-help`} class="help">${help}</p><${Problems} id=${`${id}${name}-problem`} messages=${problems[name]} /></div>`)}</div></details>`;
}

function payloadOf(text, problems) {
  try {
    return parseExact(text);
  } catch (error) {
    problems.push({ pointer: "", message: `This is no JSON: ${error.message}` });
    return undefined;
  }
}

const isOfFields = (error) => error.status === 422 && Array.isArray(error.fields?.errors);

// Where to show what is wrong: at fields of the payload, at options, or above the form.
function placesOf({ problems, error }, node, draft, isJson, edited) {
  const places = { fields: {}, options: {}, rest: [] };
  const ofPayload = [];
  // A change in a field also changes what is around it; that of a list's items (`/list/`) also what is in it.
  const isEdited = (pointer) => [...edited].some((at) => at === pointer || (pointer && at.startsWith(`${pointer}/`)) || (at.endsWith("/") && pointer.startsWith(at)));
  for (const problem of problems ?? (isOfFields(error) ? error.fields.errors : [])) {
    const option = problem.option ?? (problem.loc?.[0] === "body" && OPTIONS.find(([name]) => name === problem.loc[1])?.[0]);
    if (option) isEdited(option) || (places.options[option] ??= []).push(problem.message);
    else if (problem.pointer !== undefined) ofPayload.push(problem);
    else places.rest.push(`${(problem.loc ?? []).join(".")}: ${problem.message}`);
  }
  if (isJson) {
    if (ofPayload.length && !isEdited("")) places.fields[""] = ofPayload.map(({ pointer, message }) => (pointer ? `${pointer}: ${message}` : message));
    return places;
  }
  const { "": whole = [], ...fields } = placed(ofPayload, node, draft);
  return { ...places, fields: Object.fromEntries(Object.entries(fields).filter(([pointer]) => !isEdited(pointer))), rest: [...places.rest, ...whole] };
}

// Operators submit everywhere; others in the room that they look at.
export const maySubmit = (job, canWrite) => !job.deleted && (canOperate.value || (canWrite && Boolean(ownRoom.value)));
