// The schedules of all rooms: when each is due, and what became of its last due time.
import { canReadAll, ownRoom } from "../auth.js";
import { html } from "../lib.js";
import { href } from "../router.js";
import { Ago, Filters, JobLink, ListPage, RoomLink, TextFilter } from "../ui.js";

const none = html`<span class="none">–</span>`;
const columns = [
  { name: "name", label: "Schedule", render: (schedule) => html`<span class="name">${schedule.name}</span>` },
  { name: "room", label: "Room", render: (schedule) => html`<${RoomLink} id=${schedule.room_id} />` },
  { name: "job", label: "Job", render: (schedule) => html`<${JobLink} name=${schedule.job} />` },
  { name: "rule", label: "Due", render: (schedule) => html`<code>${ruleOf(schedule)}</code>` },
  { name: "state", label: "State", render: (schedule) => (schedule.paused ? "paused" : none) },
  { name: "next", label: "Next", render: (schedule) => html`<${Ago} at=${schedule.paused ? null : schedule.next_due_at} />` },
  { name: "last", label: "Last", render: (schedule) => html`<${Last} schedule=${schedule} />` },
  { name: "error", label: "Problem", render: (schedule) => (schedule.error ? html`<span class="name">${schedule.error}</span>` : none) },
];

export const Schedules = () => html`<${ListPage} title="Schedules" path="/schedules" caption="Schedules" columns=${columns}
  rowKey=${(schedule) => `${schedule.room_id} ${schedule.name}`} filters=${["room"]} laterSeconds=${30}
  needsRoom="You see the schedules of rooms that you may read."
  form=${html`<${Filters} label="Filter schedules"><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} isFirst /><//>`}
  empty="There are no schedules. Write one with @job(schedule=…), Queue.schedules or 'zndraw-joblib schedules put'."
  emptyIfFiltered="This room has no schedules." />`;

function ruleOf({ cron, every_seconds: every, time_zone: zone }) {
  if (cron) return zone === "UTC" ? cron : `${cron} ${zone}`;
  return every ? `every ${every} s` : "once";
}

function Last({ schedule: { last_due_at: at, last_task_id: task } }) {
  if (!at) return none;
  return html`<a href=${href(["tasks", task])}><${Ago} at=${at} /></a>`;
}
