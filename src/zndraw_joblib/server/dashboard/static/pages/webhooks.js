// The webhooks of a room, and what was delivered to them and to those of its tasks in the last 30 days.
import { act, get } from "../api.js";
import { canWriteRoom, ownRoom } from "../auth.js";
import { html, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { route } from "../router.js";
import { Ago, Badge, Button, ChoiceFilter, Copy, Dialog, Filters, Loaded, Page, Paging, Section, Table, TaskLink, TextFilter, toast } from "../ui.js";
import { FormDialog } from "./form.js";

const MAX_SHOWN = 200;
const ENDS = "task.completed task.failed task.cancelled group.ended";
const none = html`<span class="none">–</span>`;
const TONES = { active: "good", failing: "warn", disabled: "bad", delivered: "good", waiting: "quiet", failed: "bad" };
const State = ({ state }) => html`<${Badge} tone=${TONES[state]}>${state}<//>`;
const DELIVERY_STATES = [["", "any"], ["waiting", "waiting"], ["delivered", "delivered"], ["failed", "failed"]];

export function Webhooks() {
  const { query } = route.value;
  const room = query.get("room") || ownRoom.value || "default";
  const path = `/rooms/${encodeURIComponent(room)}`;
  const filters = { webhook: query.get("webhook"), state: query.get("state"), cursor: query.get("cursor") };
  const webhooks = usePoll((signal) => get(`${path}/webhooks`, { limit: MAX_SHOWN }, { signal }), [path]);
  const deliveries = usePoll((signal) => get(`${path}/deliveries`, filters, { signal }), [path, filters], filters.cursor ? 30 : 5);
  // The webhook that a form or question is about: { kind: "edit" | "secret", webhook }, without a webhook for a new one.
  const opened = useSignal(null);
  const reload = () => Promise.all([webhooks.reload(), deliveries.reload()]);
  const open = (kind, webhook) => (opened.value = { kind, webhook });
  return html`<${Page} title="Webhooks">
    <div class="card heading"><${Filters} label="Choose a room"><${TextFilter} name="room" label="Room" placeholder=${room} isFirst /><//>
      ${canWriteRoom.value && html`<${Button} tone="primary" onClick=${() => open("edit")}>New webhook<//>`}</div>
    <${Loaded} state=${webhooks}>${({ items }) => html`<${Table} caption="Webhooks" columns=${columnsWith(path, reload, open)} rows=${items} rowKey=${(webhook) => webhook.name}
      empty=${`Room ${room} has no webhooks. They send what happens to its tasks to another system: write one here, with Queue.webhooks or 'zndraw-joblib webhooks put'.`} />`}<//>
    <${Section} title="Deliveries of 30 days" class="wide" actions=${html`<${Filters} label="Filter deliveries"><${TextFilter} name="webhook" label="Webhook" />
      <${ChoiceFilter} name="state" label="State" options=${DELIVERY_STATES} /><//>`}>
      <${Loaded} state=${deliveries}>${({ items, next }) => html`<${Table} caption="Deliveries" columns=${deliveryColumns(path, reload)} rows=${items}
        empty=${filters.webhook || filters.state ? "No delivery matches this filter." : "Nothing was sent to webhooks of this room or of its tasks."} /><${Paging} next=${next} />`}<//><//>
    ${opened.value?.kind === "edit" && html`<${WebhookForm} room=${room} webhook=${opened.value.webhook} reload=${reload} onSecret=${(made) => open("made", made)} onClose=${() => opened.value?.kind === "edit" && (opened.value = null)} />`}
    ${opened.value?.kind === "secret" && html`<${SecretForm} path=${path} webhook=${opened.value.webhook} reload=${reload} onSecret=${(made) => open("made", made)} onClose=${() => opened.value?.kind === "secret" && (opened.value = null)} />`}
    ${opened.value?.kind === "made" && html`<${NewSecret} ...${opened.value.webhook} onClose=${() => (opened.value = null)} />`}<//>`;
}

const pathOf = (path, name) => `${path}/webhooks/${encodeURIComponent(name)}`;

const columnsWith = (path, reload, open) => [
  { name: "name", label: "Webhook", render: (webhook) => html`<span class="name">${webhook.name}</span>` },
  { name: "url", label: "URL", render: (webhook) => html`<span class="name">${webhook.url}</span>` },
  { name: "events", label: "Events", render: (webhook) => webhook.events.join(" ") },
  { name: "state", label: "State", render: (webhook) => html`<${State} state=${webhook.state} />` },
  { name: "signed", label: "Signed", render: (webhook) => (webhook.is_signed ? html`yes${webhook.previous_secret_until && html`, the secret before ends <${Ago} at=${webhook.previous_secret_until} />`}` : "no") },
  { name: "waiting", label: "Waiting", class: "number", render: (webhook) => webhook.waiting },
  { name: "next", label: "Next attempt", render: (webhook) => (webhook.next_attempt_at ? html`<${Ago} at=${webhook.next_attempt_at} />` : none) },
  { name: "error", label: "Problem", render: (webhook) => webhook.disabled_reason ?? (webhook.failures ? `${webhook.failures} failed: ${webhook.last_error}` : none) },
  { name: "actions", label: "Actions", render: (webhook) => html`<${Actions} path=${pathOf(path, webhook.name)} webhook=${webhook} reload=${reload} open=${open} />` },
];

function Actions({ path, webhook, reload, open }) {
  if (!canWriteRoom.value) return none;
  const test = () => act("POST", `${path}/test`).then(reload);
  const remove = () => act("DELETE", path).then(reload);
  return html`<span class="actions"><${Button} class="small" onClick=${test} success="A test event is sent. Its delivery is below." aria-label=${`Test ${webhook.name}`}>Test<//>
    <${Button} class="small" onClick=${() => open("edit", webhook)} aria-label=${`Edit ${webhook.name}`}>Edit<//>
    <${Button} class="small" onClick=${() => open("secret", webhook)} aria-label=${`New secret of ${webhook.name}`}>New secret<//>
    <${Button} class="small deletes" onClick=${remove} success="The webhook is deleted." aria-label=${`Delete ${webhook.name}`}
      confirm=${{ title: `Delete the webhook ${webhook.name}?`, body: "What waits for it is not sent. Its deliveries stay in the list.", action: "Delete the webhook" }}>Delete<//></span>`;
}

const deliveryColumns = (path, reload) => [
  { name: "id", label: "Delivery", render: (delivery) => html`<span class="id" title=${delivery.message_id}>${delivery.id}</span>` },
  { name: "webhook", label: "Webhook", render: (delivery) => (delivery.webhook ? html`<span class="name">${delivery.webhook}</span>` : html`<span class="none">of its submit</span>`) },
  { name: "event", label: "Event", render: (delivery) => delivery.event },
  { name: "task", label: "Task", render: (delivery) => (delivery.task_id ? html`<${TaskLink} id=${delivery.task_id} />` : none) },
  { name: "state", label: "State", render: (delivery) => html`<${State} state=${delivery.state} />` },
  { name: "attempts", label: "Attempts", class: "number", render: (delivery) => delivery.attempts },
  { name: "created", label: "Created", render: (delivery) => html`<${Ago} at=${delivery.created_at} />` },
  { name: "error", label: "Last answer", render: (delivery) => delivery.error ?? delivery.status_code ?? none },
  { name: "actions", label: "Actions", render: (delivery) => html`<${Repeat} path=${`${path}/deliveries/${delivery.id}/repeat`} delivery=${delivery} reload=${reload} />` },
];

function Repeat({ path, delivery, reload }) {
  if (!canWriteRoom.value || delivery.state === "waiting") return none;
  return html`<${Button} class="small" onClick=${() => act("POST", path).then(reload)} success="It is sent again." aria-label=${`Repeat delivery ${delivery.id}`}>Repeat<//>`;
}

const SECRET = { name: "secret", label: "Secret", help: "It signs each delivery. Empty: a random one; it is shown once. Or whsec_ and 24 to 64 bytes as base64" };

function WebhookForm({ room, webhook = {}, reload, onSecret, onClose }) {
  const isNew = !webhook.name;
  const fields = [
    { name: "name", label: "Name", help: "Letters, digits, _ - and .", needed: true, fixed: !isNew },
    { name: "room_id", label: "Room", help: "Whose events it gets", needed: true, fixed: !isNew },
    { name: "url", label: "URL", help: "https://host/path", needed: true },
    { name: "events", label: "Events", help: "task.started, task.completed, task.failed, task.cancelled, group.ended", initial: ENDS },
    ...(isNew ? [SECRET] : []),
  ];
  const send = async ({ name, room_id: roomId, events, ...body }) => {
    const made = isNew && !body.secret ? newSecret() : null;
    await act("PUT", pathOf(`/rooms/${encodeURIComponent(roomId)}`, name), { ...body, ...listOf(events), ...(made && { secret: made }) });
    toast("The webhook is written.");
    reload();
    if (made) onSecret({ name, secret: made });
  };
  return html`<${FormDialog} title=${isNew ? "New webhook" : `Edit the webhook ${webhook.name}`} action=${isNew ? "Create the webhook" : "Change the webhook"}
    about=${isNew ? "It gets what happens from now on." : "It keeps its secret, and is enabled if it was disabled."} fields=${fields}
    value=${{ ...webhook, room_id: room, events: webhook.events?.join(" ") }} send=${send} onClose=${onClose} />`;
}

function SecretForm({ path, webhook, reload, onSecret, onClose }) {
  const fields = [
    SECRET,
    { name: "previous_secret_seconds", label: "Seconds for which the present one signs too", kind: "number", help: "86400 is a day; 0 ends it at once", initial: "86400" },
  ];
  const send = async (body) => {
    const secret = body.secret ?? newSecret();
    await act("PUT", pathOf(path, webhook.name), { url: webhook.url, events: webhook.events, ...body, secret });
    toast("The webhook has a new secret.");
    reload();
    if (!body.secret) onSecret({ name: webhook.name, secret });
  };
  return html`<${FormDialog} title=${`Change the secret of ${webhook.name}`} action="Change the secret" about="Until the time is over both secrets sign each delivery, so that the receiver can change its own."
    fields=${fields} send=${send} onClose=${onClose} />`;
}

const NewSecret = ({ name, secret, onClose }) => html`<${Dialog} title=${`The secret of ${name}`} onClose=${onClose}>
  <div class="dialog-body"><p>Store it where the receiver reads it. It is not shown again.</p><p><code class="name">${secret}</code></p></div>
  <footer><${Copy} text=${secret} label="Copy the secret" /><button type="button" class="primary" onClick=${onClose}>Close</button></footer><//>`;

const listOf = (text) => (text ? { events: text.split(/[\s,]+/).filter(Boolean) } : {});

const newSecret = () => `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))}`;
