// The limits that jobs share by their names: list, define, change and delete.
import { act, get } from "../api.js";
import { canOperate } from "../auth.js";
import { count, rateText } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { route } from "../router.js";
import { Ago, Button, Loaded, Page, Paging, Table, toast } from "../ui.js";
import { FormDialog } from "./form.js";

const SIZE = 100;
const FIELDS = [
  { name: "max_in_flight", label: "At once", kind: "number", help: "How many tasks may be claimed or running" },
  { name: "rate.count", label: "Rate: tasks", kind: "number", help: "How many may be claimed in each period" },
  { name: "rate.per_seconds", label: "Rate: period in seconds", kind: "number", help: "At even distances" },
  { name: "rate.burst", label: "Rate: burst", kind: "number", help: "How many at once after a pause; 1 by default" },
];
const none = html`<span class="none">–</span>`;
const pathOf = (name) => `/limits/${encodeURIComponent(name)}`;

export function Limits() {
  const offset = Number(route.value.query.get("cursor") ?? 0) || 0;
  const state = usePoll((signal) => get("/limits", { limit: SIZE, offset }, { signal }), [offset], 10);
  // The limit that is changed, {} for a new one.
  const edited = useSignal(null);
  const columns = [
    { name: "name", label: "Limit", render: (limit) => html`<span class="name">${limit.name}</span>` },
    { name: "at-once", label: "At once", render: (limit) => (limit.max_in_flight ? count(limit.max_in_flight) : none) },
    { name: "rate", label: "Rate", render: (limit) => rateText(limit.rate) ?? none },
    { name: "changed", label: "Changed", render: (limit) => html`<span><${Ago} at=${limit.updated_at} /> <span class="help">by ${limit.updated_by}</span></span>` },
    canOperate.value && { name: "do", label: "Actions", render: (limit) => html`<span class="actions">
      <${Button} class="small" onClick=${() => (edited.value = limit)} aria-label=${`Edit ${limit.name}`}>Edit<//>
      <${Button} class="small deletes" success="The limit is deleted." aria-label=${`Delete ${limit.name}`}
        confirm=${{ title: `Delete the limit ${limit.name}?`, body: "The server refuses it while a job has this limit.", action: "Delete the limit" }}
        onClick=${() => act("DELETE", pathOf(limit.name)).then(state.reload)}>Delete<//></span>` },
  ].filter(Boolean);
  const actions = canOperate.value && html`<${Button} tone="primary" onClick=${() => (edited.value = {})}>New limit<//>`;
  return html`<${Page} title="Limits" actions=${actions}>
    <p class="help">Jobs name these limits in their policy, and share their slots and tokens.</p>
    <${Loaded} state=${state}>${({ items, total }) => html`
      <${Table} caption="Limits" columns=${columns} rows=${items} rowKey=${(limit) => limit.name}
        empty="There are no limits. Jobs may have limits of their own without a name." />
      <${Paging} next=${items.length && offset + items.length < total ? String(offset + items.length) : null} />`}<//>
    ${edited.value && html`<${LimitForm} limit=${edited.value} onClose=${() => (edited.value = null)} reload=${state.reload} />`}<//>`;
}

function LimitForm({ limit, onClose, reload }) {
  const isNew = !limit.name;
  const name = { name: "name", label: "Name", help: "1 to 64 letters, digits, _ - and .", needed: true, fixed: !isNew };
  const send = async ({ name: entered, ...body }) => {
    await act("PUT", pathOf(entered), body);
    toast("The limit holds from now on.");
    reload();
  };
  return html`<${FormDialog} title=${isNew ? "New limit" : `Edit the limit ${limit.name}`} action=${isNew ? "Create the limit" : "Change the limit"}
    about="It holds for all claims from now on. Fill in a number of tasks at once, a rate, or both." fields=${[name, ...FIELDS]} value=${limit} send=${send} onClose=${onClose} />`;
}
