// A dialog with a form for the body of a request. The server validates it; its problems are at their fields.
import { stringify, parseExact } from "../json.js";
import { html, useId, useMemo, useRef, useSignal } from "../lib.js";
import { Button, Dialog, Failure } from "../ui.js";
import { Problems } from "./schema_fields.js";

// `fields`: { name, label, help, kind, options, needed, fixed, more }. The name is the path in the body, like "rate.count". `kind` is
// text, number, json, time or choice with `options` [[value, label], …]. `fixed` shows the value only. Those with `more` are folded.
// Fields without a text are left out of the body that `send` gets.
export function FormDialog({ title, about, action, fields, value = {}, send, onClose }) {
  const first = useMemo(() => Object.fromEntries(fields.map((field) => [field.name, textOf(field, at(value, field.name))])), []);
  const texts = useSignal(first);
  const problems = useSignal({});
  const failure = useSignal(null);
  const form = useRef();
  const fail = (places, error = null) => {
    problems.value = places;
    failure.value = error;
    setTimeout(() => form.current?.querySelector("[aria-invalid]")?.focus());
  };
  const submit = async () => {
    const places = {};
    const body = bodyOf(fields, texts.value, places, (name) => (texts.value[name] === first[name] ? at(value, name) : undefined));
    if (Object.keys(places).length) return fail(places);
    try {
      await send(body);
    } catch (error) {
      const { places: ofFields, isComplete } = placesOf(error, fields);
      return fail(ofFields, isComplete ? null : error);
    }
    return onClose();
  };
  const change = (name, text) => {
    texts.value = { ...texts.value, [name]: text };
    const { [name]: _, ...others } = problems.value;
    problems.value = others;
  };
  const show = (own) => own.map((field) => html`<${FormField} key=${field.name} field=${field} text=${texts.value[field.name]}
    messages=${problems.value[field.name]} onChange=${(text) => change(field.name, text)} />`);
  const more = fields.filter((field) => field.more);
  const isOpen = more.some(({ name }) => problems.value[name]);
  return html`<${Dialog} title=${title} onClose=${onClose} wide>
    <form ref=${form} class="dialog-body form" noValidate onSubmit=${(event) => event.preventDefault()}>
      ${about && html`<p class="help">${about}</p>`}
      <div class="form two">${show(fields.filter((field) => !field.more))}</div>
      ${more.length > 0 && html`<details class="options" open=${isOpen || undefined}><summary>More options</summary><div class="form two">${show(more)}</div></details>`}
      <${Failure} error=${failure.value} /></form>
    <footer><button type="button" onClick=${onClose}>Close</button><${Button} tone="primary" onClick=${submit}>${action}<//></footer><//>`;
}

function FormField({ field, text, messages, onChange }) {
  const id = useId();
  const change = (event) => onChange(event.target.value);
  const attributes = {
    id, name: field.name, autocomplete: "off", spellcheck: false, value: text, "aria-invalid": messages ? "true" : undefined,
    "aria-required": field.needed ? "true" : undefined, "aria-describedby": `${id}-help${messages ? ` ${id}-problem` : ""}`,
  };
  return html`<div class="field ${field.kind === "json" ? "wide" : ""}"><label for=${id}>${field.label}${field.needed && html` <span class="needed" title="required">*</span>`}</label>
    ${field.kind === "choice"
      ? html`<select ...${attributes} onChange=${change}>${field.options.map(([value, label]) => html`<option key=${value} value=${value} selected=${value === text}>${label}</option>`)}</select>`
      : field.kind === "json"
        ? html`<textarea ...${attributes} class="short" rows="3" onInput=${change}></textarea>`
        : html`<input ...${attributes} type=${field.kind === "time" ? "datetime-local" : "text"} step=${field.kind === "time" ? 1 : undefined}
            inputmode=${field.kind === "number" ? "decimal" : undefined} readonly=${field.fixed} onInput=${change} />`}
    <p id=${`${id}-help`} class="help">${field.help}</p><${Problems} id=${`${id}-problem`} messages=${messages} /></div>`;
}

const at = (value, path) => path.split(".").reduce((part, name) => part?.[name], value);

function textOf({ kind, initial = "" }, value) {
  if (value === null || value === undefined) return initial;
  if (kind === "json") return stringify(value, 2);
  return kind === "time" ? localTime(value) : String(value);
}

// What an input for local times shows: 2030-01-31T18:00:00.
function localTime(text) {
  const moment = new Date(text);
  return new Date(moment - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

// `unchanged(name)` is the value of a field whose text is as it was: a text may show less than all of it.
function bodyOf(fields, texts, problems, unchanged) {
  const body = {};
  for (const { name, label, kind, needed } of fields) {
    const text = (texts[name] ?? "").trim();
    if (!text && needed) problems[name] = [`${label} is required.`];
    if (!text) continue;
    const path = name.split(".");
    const last = path.pop();
    const part = path.reduce((parent, step) => (parent[step] ??= {}), body);
    try {
      part[last] = unchanged(name) ?? valueOf(kind, text);
    } catch (error) {
      problems[name] = [error.message];
    }
  }
  return body;
}

function valueOf(kind, text) {
  if (kind === "number") {
    if (!Number.isFinite(Number(text))) throw new Error(`${text} is no number.`);
    return Number(text);
  }
  if (kind === "time") return new Date(text).toISOString();
  if (kind !== "json") return text;
  try {
    return parseExact(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

// The messages of a problem by the name of their field, and whether these are all of it.
function placesOf(error, fields) {
  const places = {};
  let isComplete = Array.isArray(error.fields?.errors) && error.fields.errors.length > 0;
  for (const { loc = [], pointer, message } of isComplete ? error.fields.errors : []) {
    // Of a payload that does not match the schema the problem has a pointer.
    const path = pointer === undefined ? loc.slice(1).join(".") : "payload";
    const field = fields.find(({ name, fixed }) => !fixed && (path === name || path.startsWith(`${name}.`)));
    if (field) (places[field.name] ??= []).push(pointer ? `${pointer}: ${message}` : message.replace(/^Value error, /, ""));
    else isComplete = false;
  }
  return { places, isComplete };
}
