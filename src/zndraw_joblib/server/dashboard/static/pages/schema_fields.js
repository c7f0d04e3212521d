// The fields of a form that a JSON Schema describes. A field gets its node, its draft, and what to do with a new draft.
import { html, useId } from "../lib.js";
import { stringify } from "../json.js";
import { below, draftOf, hintOf, itemOf } from "../schema.js";

// `problems` has the messages by the pointer of the field.
export function Field({ node, ...rest }) {
  if (node.kind === "object") return html`<${Group} node=${node} ...${rest} />`;
  if (node.kind === "array") return html`<${List} node=${node} ...${rest} />`;
  return html`<${Leaf} node=${node} ...${rest} />`;
}

export const Problems = ({ id, messages }) => messages && html`<div id=${id} class="problem">
  ${messages.map((message, index) => html`<p key=${index}>${message}</p>`)}</div>`;

function Leaf({ node, label, isRequired, pointer, draft, onChange, problems }) {
  const id = useId();
  const messages = problems[pointer];
  const common = {
    id, name: pointer, required: isRequired, "aria-invalid": messages ? "true" : undefined,
    "aria-describedby": `${id}-help${messages ? ` ${id}-problem` : ""}`,
    autocomplete: "off", spellcheck: false,
  };
  return html`<div class="field"><label for=${id}><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</label>
    <${Control} node=${node} draft=${draft} onChange=${onChange} common=${common} isRequired=${isRequired} />
    <p id=${`${id}-help`} class="help">${[node.schema.description, hintOf(node)].filter(Boolean).join(" · ")}</p>
    <${Problems} id=${`${id}-problem`} messages=${messages} /></div>`;
}

// The form is sent in any state: the server says what is wrong. So `required` is only said, not enforced.
function Control({ node, draft, onChange, common: { required, ...common }, isRequired }) {
  const change = (event) => onChange(event.target.value);
  const attributes = { ...common, "aria-required": required ? "true" : undefined };
  if (node.kind === "choice" || node.kind === "boolean") {
    const options = node.kind === "boolean" ? [["true", "true"], ["false", "false"]]
      : node.options.map((option, index) => [String(index), typeof option === "string" ? option : stringify(option)]);
    return html`<select ...${attributes} value=${draft} onChange=${change}>
      <option value="">${isRequired && !node.isNullable ? "choose …" : "not given"}</option>
      ${options.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}</select>`;
  }
  if (node.kind === "json") return html`<textarea ...${attributes} class="short" rows="3" value=${draft} onInput=${change}></textarea>`;
  if (node.kind === "string" && (node.schema.maxLength > 200 || node.schema.format === "textarea" || draft.includes("\n"))) {
    return html`<textarea ...${attributes} class="short" rows="3" value=${draft} onInput=${change}></textarea>`;
  }
  // Numbers are texts, so that all their digits reach the job.
  const mode = { integer: "numeric", number: "decimal" }[node.kind];
  return html`<input ...${attributes} type="text" inputmode=${mode} value=${draft} onInput=${change} />`;
}

function Group({ node, label, isRequired, pointer, draft, onChange, problems }) {
  const fields = html`${node.fields.map(({ name, isRequired: isNeeded, node: field }) => html`<${Field} key=${name} node=${field} label=${name}
    isRequired=${isNeeded} pointer=${below(pointer, name)} draft=${draft.fields[name]} problems=${problems}
    onChange=${(next) => onChange((now) => ({ ...now, fields: { ...now.fields, [name]: applied(next, now.fields[name]) } }))} />`)}`;
  if (pointer === "") return html`<div class="form">${fields}</div>`;
  return html`<fieldset class="group"><legend><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</legend>
    ${node.schema.description && html`<p class="help">${node.schema.description}</p>`}
    <${Problems} messages=${problems[pointer]} />
    <div class="form">${fields}</div></fieldset>`;
}

// A change is a new draft, or a function of the present one, so that two changes at once are both kept.
export const applied = (next, draft) => (typeof next === "function" ? next(draft) : next);

function List({ node, label, isRequired, pointer, draft, onChange, problems }) {
  const add = () => onChange((now) => [...now, itemOf(draftOf(node.item, undefined, true))]);
  const remove = (key) => onChange((now) => now.filter((item) => item.key !== key));
  const change = (key) => (next) => onChange((now) => now.map((item) => (item.key === key ? { ...item, draft: applied(next, item.draft) } : item)));
  return html`<fieldset class="group list"><legend><span class="name">${label}</span>${isRequired && html` <span class="needed" title="required">*</span>`}</legend>
    <p class="help">${[node.schema.description, hintOf(node)].filter(Boolean).join(" · ")}</p>
    <${Problems} messages=${problems[pointer]} />
    ${draft.map((item, index) => html`<div key=${item.key} class="item">
      <${Field} node=${node.item} label=${`${label} ${index + 1}`} isRequired pointer=${below(pointer, index)} draft=${item.draft} problems=${problems} onChange=${change(item.key)} />
      <button type="button" class="small" aria-label=${`Remove ${label} ${index + 1}`} onClick=${() => remove(item.key)}>Remove</button></div>`)}
    <button type="button" class="small" onClick=${add}>Add to ${label}</button></fieldset>`;
}
