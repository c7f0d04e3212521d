// Submit a task: a form made from the job's JSON Schema, or JSON. The server validates; its problems are at their fields.
import { act, newKey, Unreachable } from "../api.js";
import { canOperate, canReadAll, ownRoom } from "../auth.js";
import { parseExact, stringify } from "../json.js";
import { html, useId, useMemo, useRef, useSignal } from "../lib.js";
import { go } from "../router.js";
import { draftOf, nodeOf, placed, valueOf } from "../schema.js";
import { Button, Failure, Section, toast } from "../ui.js";
import { applied, Field, Problems } from "./schema_fields.js";

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

export const jobPath = (name) => encodeURIComponent(name).replaceAll("%3A", ":");

export function Submit({ job }) {
  const node = useMemo(() => nodeOf(job.schema ?? {}), [stringify(job.schema ?? {})]);
  const start = useMemo(() => (node.kind === "object" ? draftOf(node, undefined, true) : undefined), [node]);
  const draft = useSignal(start);
  const text = useSignal(start ? "" : "{}");
  const isJson = useSignal(!start);
  const room = useSignal(RESERVED.includes(job.room_id) ? ownRoom.value || DEFAULT_ROOM : job.room_id);
  const options = useSignal({});
  const failure = useSignal(null);
  const lastTry = useRef(null);
  const roomId = useId();
  const form = useRef();
  // What is said of a field holds until the field changes.
  const edited = useSignal(new Set());
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
    const content = `${room.value}\n${stringify(body)}`;
    // The same task after a lost answer has the same key, so it is not submitted twice.
    lastTry.current = { content, key: lastTry.current?.content === content ? lastTry.current.key : newKey() };
    try {
      const task = await act("POST", `/rooms/${encodeURIComponent(room.value.trim())}/tasks/${jobPath(job.full_name)}`, body, { key: lastTry.current.key });
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
  return html`<${Section} title="Submit a task" class="submit" actions=${choice}><form ref=${form} class="form" noValidate onSubmit=${(event) => event.preventDefault()}
    onInput=${({ target }) => failure.value && (edited.value = new Set([...edited.value, target.name]))}>
    ${shown.rest.length > 0 && html`<div class="failure" role="alert"><strong>The task was not submitted</strong>
      ${shown.rest.map((message, index) => html`<p key=${index}>${message}</p>`)}</div>`}
    ${failure.value?.error && !isOfFields(failure.value.error) && html`<${Failure} error=${failure.value.error} />`}
    ${canReadAll.value && html`<div class="field"><label for=${roomId}>Room <span class="needed" title="required">*</span></label>
      <input id=${roomId} name="room" value=${room.value} autocomplete="off" spellcheck=${false} aria-required="true" onInput=${(event) => (room.value = event.target.value)} /></div>`}
    ${isJson.value
      ? html`<${JsonField} text=${text} messages=${shown.fields[""]} />`
      : html`<${Field} node=${node} pointer="" draft=${draft.value} problems=${shown.fields} isRequired
          onChange=${(next) => (draft.value = applied(next, draft.value))} />`}
    <${Options} options=${options} problems=${shown.options} />
    <div class="actions"><${Button} tone="primary" onClick=${send} disabled=${!room.value.trim()}>Submit<//>
      ${!room.value.trim() && html`<span class="help">Name the room of the task.</span>`}</div>
  </form><//>`;
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
  for (const problem of problems ?? (isOfFields(error) ? error.fields.errors : [])) {
    const option = problem.option ?? (problem.loc?.[0] === "body" && OPTIONS.find(([name]) => name === problem.loc[1])?.[0]);
    if (option) edited.has(option) || (places.options[option] ??= []).push(problem.message);
    else if (problem.pointer !== undefined) ofPayload.push(problem);
    else places.rest.push(`${(problem.loc ?? []).join(".")}: ${problem.message}`);
  }
  if (isJson) {
    if (ofPayload.length && !edited.has("")) places.fields[""] = ofPayload.map(({ pointer, message }) => (pointer ? `${pointer}: ${message}` : message));
    return places;
  }
  const { "": whole = [], ...fields } = placed(ofPayload, node, draft);
  for (const pointer of edited) delete fields[pointer];
  return { ...places, fields, rest: [...places.rest, ...whole] };
}

// Operators submit everywhere; others in the room that they look at.
export const maySubmit = (job, canWrite) => !job.deleted && (canOperate.value || (canWrite && Boolean(ownRoom.value)));
