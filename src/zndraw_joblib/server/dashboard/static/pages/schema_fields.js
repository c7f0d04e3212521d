// The fields of a form that a JSON Schema describes. A field gets its node, its draft, and what to do with a new draft.
import { get } from "../api.js";
import { count } from "../format.js";
import { html, useId } from "../lib.js";
import { usePoll } from "../live.js";
import { stringify } from "../json.js";
import { below, choicesIn, draftOf, hintOf, isSecret, itemOf, providerOf } from "../schema.js";

// `problems` has the messages by the pointer of the field. The choices of a field may come from a provider that `room` sees.
export function Field({ node, ...rest }) {
  if (node.kind === "object") return html`<${Group} node=${node} ...${rest} />`;
  if (node.kind === "array") return html`<${List} node=${node} ...${rest} />`;
  return html`<${Leaf} node=${node} ...${rest} />`;
}

export const Problems = ({ id, messages }) => messages && html`<div id=${id} class="problem">
  ${messages.map((message, index) => html`<p key=${index}>${message}</p>`)}</div>`;

// A provider named without a room is the room's own one, or else that of all rooms.
async function readChoices(room, provider, signal) {
  const [short, full] = [provider.name.split(":").length < 3, provider.name];
  const read = (name) => get(`/rooms/${encodeURIComponent(room)}/providers/${encodeURIComponent(name).replaceAll("%3A", ":")}`, provider.params, { signal, headers: { Prefer: "wait=10" } });
  const answer = await read(short ? `${room}:${full}` : full).catch((error) => {
    if (!short || error.status !== 404) throw error;
    return read(`@global:${full}`);
  });
  return choicesIn(answer, provider);
}

// The field of a schema with `x-provider`; a plain one while its provider has no answer.
function Chooser({ provider, room, draft, isRequired, onChange, common, control, helpId }) {
  const state = usePoll((signal) => room ? readChoices(room, provider, signal) : [], [room, provider], null);
  if (!state.data) {
    return html`${control}<p id=${helpId} class="help">${state.error
      ? html`No choices from the provider ${provider.name}: ${state.error.message} <button type="button" class="small" onClick=${state.reload}>Read again</button>`
      : `Reading the choices from the provider ${provider.name} …`}</p>`;
  }
  const { data: choices } = state;
  const isOther = draft !== "" && !choices.some(([value]) => value === draft);
  return html`<select ...${common} value=${draft} onChange=${(event) => onChange(event.target.value)}>
      <option value="">${isRequired ? "choose …" : "not given"}</option>
      ${isOther && html`<option value=${draft} selected>${draft} (not among the choices)</option>`}
      ${choices.map(([value, text], index) => html`<option key=${index} value=${value} selected=${value === draft}>${text}</option>`)}</select>
    <p id=${helpId} class="help">${count(choices.length)} choices from the provider ${provider.name}</p>`;
}

function Leaf({ node, label, isRequired, pointer, draft, onChange, problems, room }) {
  const id = useId();
  const provider = providerOf(node);
  const messages = problems[pointer];
  const common = {
    // The form is sent in any state: the server says what is wrong. So `required` is only said, not enforced.
    id, name: pointer, "aria-required": isRequired ? "true" : undefined, "aria-invalid": messages ? "true" : undefined,
    "aria-describedby": `${id}-help${provider ? ` ${id}-choices` : ""}${messages ? ` ${id}-problem` : ""}`,
    autocomplete: "off", spellcheck: false,
  };
  const control = html`<${Control} node=${node} draft=${draft} onChange=${onChange} common=${common} isRequired=${isRequired} />`;
  return html`<div class="field"><label for=${id}><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</label>
    ${provider ? html`<${Chooser} provider=${provider} room=${room} draft=${draft} isRequired=${isRequired} onChange=${onChange} common=${common} helpId=${`${id}-choices`} control=${control} />` : control}
    <p id=${`${id}-help`} class="help">${[node.schema.description, hintOf(node)].filter(Boolean).join(" · ")}</p>
    <${Problems} id=${`${id}-problem`} messages=${messages} /></div>`;
}

function Control({ node, draft, onChange, common: attributes, isRequired }) {
  const change = (event) => onChange(event.target.value);
  if (node.kind === "choice" || node.kind === "boolean") {
    const options = node.kind === "boolean" ? [["true", "true"], ["false", "false"]]
      : node.options.map((option, index) => [String(index), typeof option === "string" ? option : stringify(option)]);
    return html`<select ...${attributes} value=${draft} onChange=${change}>
      <option value="">${isRequired && !node.isNullable ? "choose …" : "not given"}</option>
      ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select>`;
  }
  if (node.kind === "json") return html`<textarea ...${attributes} class="short" rows="3" value=${draft} onInput=${change}></textarea>`;
  const isHidden = isSecret(node.schema) && node.schema.format !== "textarea";
  if (node.kind === "string" && !isHidden && (node.schema.maxLength > 200 || node.schema.format === "textarea" || draft.includes("\n"))) {
    return html`<textarea ...${attributes} class="short" rows="3" value=${draft} onInput=${change}></textarea>`;
  }
  // Numbers are texts, so that all their digits reach the job.
  const mode = { integer: "numeric", number: "decimal" }[node.kind];
  return html`<input ...${attributes} type=${isHidden ? "password" : "text"} autocomplete=${isHidden ? "new-password" : "off"} inputmode=${mode} value=${draft} onInput=${change} />`;
}

function Group({ node, label, isRequired, pointer, draft, onChange, problems, room }) {
  const fields = html`${node.fields.map(({ name, isRequired: isNeeded, node: field }) => html`<${Field} key=${name} node=${field} label=${name}
    isRequired=${isNeeded} pointer=${below(pointer, name)} draft=${draft.fields[name]} problems=${problems} room=${room}
    onChange=${(next) => onChange((now) => ({ ...now, fields: { ...now.fields, [name]: applied(next, now.fields[name]) } }))} />`)}`;
  if (pointer === "") return html`<div class="form">${fields}</div>`;
  return html`<fieldset class="group"><legend><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</legend>
    ${node.schema.description && html`<p class="help">${node.schema.description}</p>`}
    <${Problems} messages=${problems[pointer]} />
    <div class="form">${fields}</div></fieldset>`;
}

// A change is a new draft, or a function of the present one, so that two changes at once are both kept.
export const applied = (next, draft) => (typeof next === "function" ? next(draft) : next);

function List({ node, label, isRequired, pointer, draft, onChange, problems, room }) {
  const add = () => onChange((now) => [...now, itemOf(draftOf(node.item, undefined, true))]);
  const remove = (key) => onChange((now) => now.filter((item) => item.key !== key));
  const change = (key) => (next) => onChange((now) => now.map((item) => (item.key === key ? { ...item, draft: applied(next, item.draft) } : item)));
  return html`<fieldset class="group list"><legend><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</legend>
    <p class="help">${[node.schema.description, hintOf(node)].filter(Boolean).join(" · ")}</p>
    <${Problems} messages=${problems[pointer]} />
    ${draft.map((item, index) => html`<div key=${item.key} class="item">
      <${Field} node=${node.item} label=${`${label} ${index + 1}`} isRequired pointer=${below(pointer, index)} draft=${item.draft} problems=${problems} room=${room} onChange=${change(item.key)} />
      <button type="button" class="small" data-edits=${pointer} aria-label=${`Remove ${label} ${index + 1}`} onClick=${() => remove(item.key)}>Remove</button></div>`)}
    <button type="button" class="small" data-edits=${pointer} onClick=${add}>Add to ${label}</button></fieldset>`;
}
