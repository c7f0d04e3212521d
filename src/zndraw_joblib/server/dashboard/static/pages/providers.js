// The providers of remote data: whether they are connected, and how many requests wait for them.
import { count } from "../format.js";
import { html, useSignal } from "../lib.js";
import { Ago, Badge, Dialog, Json, ListPage, RoomLink, WorkerLink } from "../ui.js";

export function Providers() {
  const shown = useSignal(null);
  const columns = [
    { name: "provider", label: "Provider", render: (provider) => html`<span class="name">${provider.full_name}</span>` },
    { name: "state", label: "State", render: (provider) => html`<${Badge} tone=${provider.connected ? "good" : "bad"}
      title=${provider.connected ? "Its worker waits for requests" : "Its worker has not asked for requests for a while"}>${provider.connected ? "connected" : "silent"}<//>` },
    { name: "requests", label: "Open requests", class: "number", render: (provider) => html`<span class=${provider.open_requests && !provider.connected ? "error" : ""}>${count(provider.open_requests)}</span>` },
    { name: "room", label: "Room", render: (provider) => html`<${RoomLink} id=${provider.room_id} />` },
    { name: "worker", label: "Worker", render: (provider) => html`<${WorkerLink} id=${provider.worker_id} />` },
    { name: "type", label: "Content type", render: (provider) => provider.content_type },
    { name: "since", label: "Since", render: (provider) => html`<${Ago} at=${provider.created_at} />` },
    { name: "schema", label: "Schema", render: (provider) => html`<button type="button" class="small" aria-label=${`Show the schema of ${provider.full_name}`} onClick=${() => (shown.value = provider)}>Show</button>` },
  ];
  return html`<${ListPage} title="Providers" path="/providers" columns=${columns}
      empty="There are no providers. Workers register them when they offer data." emptyIfLater="No further provider." />
    ${shown.value && html`<${Dialog} title=${`Schema of ${shown.value.full_name}`} wide onClose=${() => (shown.value = null)}>
      <div class="dialog-body"><p class="help">The parameters of a request to it.</p><${Json} value=${shown.value.schema} label="Schema" /></div><//>`}`;
}
