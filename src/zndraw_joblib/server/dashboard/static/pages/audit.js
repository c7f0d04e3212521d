// The audit trail: which operator changed what, newest first.
import { canReadAll, ownRoom } from "../auth.js";
import { html } from "../lib.js";
import { href } from "../router.js";
import { stringify } from "../json.js";
import { Ago, Copy, Filters, JobLink, ListPage, RoomLink, TextFilter, WorkerLink } from "../ui.js";

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-/;
const columns = [
  { name: "at", label: "When", render: (entry) => html`<${Ago} at=${entry.at} />` },
  { name: "actor", label: "Who", render: (entry) => html`<span class="name">${entry.actor}</span>` },
  { name: "action", label: "Action", render: (entry) => html`<code>${entry.action}</code>` },
  { name: "target", label: "Target", render: (entry) => html`<${Target} entry=${entry} />` },
  { name: "room", label: "Room", render: (entry) => entry.room_id ? html`<${RoomLink} id=${entry.room_id} />` : html`<span class="none">–</span>` },
  { name: "detail", label: "Detail", render: (entry) => html`<${Detail} detail=${entry.detail} />` },
  { name: "request", label: "Request", render: (entry) => entry.request_id ? html`<${Copy} text=${entry.request_id} label="Copy id" />` : html`<span class="none">–</span>` },
];

export const Audit = () => html`<${ListPage} title="Audit trail" path="/audit" caption="Actions" columns=${columns} rowKey=${(entry) => entry.n}
  filters=${["room", "actor", "action"]} laterSeconds=${30} needsRoom="You see the actions in rooms that you may read."
  form=${html`<${Filters} label="Filter actions"><${TextFilter} name="action" label="Action" placeholder="job.pause" isFirst />
    <${TextFilter} name="actor" label="Who" /><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} /><//>`}
  empty="No operator has changed anything yet." emptyIfFiltered="No action matches this filter." />`;

function Target({ entry: { action, target } }) {
  const [kind] = action.split(".");
  if (kind === "job") return html`<${JobLink} name=${target} />`;
  if (kind === "sweeper") return html`<a href=${href("sweeper")}>${target}</a>`;
  if (kind === "worker" && ID.test(target)) return html`<${WorkerLink} id=${target} />`;
  if (kind === "task" && ID.test(target)) return html`<a class="id" href=${href(["tasks", target])} title=${target}>${target.slice(0, 8)}</a>`;
  return html`<span class="name">${target}</span>`;
}

const flat = (value) => (typeof value === "string" ? value : stringify(value));

function Detail({ detail }) {
  const parts = Object.entries(detail ?? {}).filter(([, value]) => value !== null);
  if (!parts.length) return html`<span class="none">–</span>`;
  return html`<span class="name">${parts.map(([name, value]) => `${name} ${flat(value)}`).join(", ")}</span>`;
}
