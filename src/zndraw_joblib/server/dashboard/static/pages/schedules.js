// The schedules of all rooms: when each is due, and what became of its last due time.
import { act } from "../api.js";
import { canReadAll, canWriteRoom, ownRoom } from "../auth.js";
import { html } from "../lib.js";
import { href } from "../router.js";
import { Ago, Button, Filters, JobLink, ListPage, RoomLink, Table, TextFilter } from "../ui.js";

const none = html`<span class="none">–</span>`;
const columnsWith = (reload) => [
  { name: "name", label: "Schedule", render: (schedule) => html`<span class="name">${schedule.name}</span>` },
  { name: "room", label: "Room", render: (schedule) => html`<${RoomLink} id=${schedule.room_id} />` },
  { name: "job", label: "Job", render: (schedule) => html`<${JobLink} name=${schedule.job} />` },
  { name: "rule", label: "Due", render: (schedule) => html`<code>${ruleOf(schedule)}</code>` },
  { name: "state", label: "State", render: (schedule) => (schedule.paused ? "paused" : none) },
  { name: "next", label: "Next", render: (schedule) => html`<${Ago} at=${schedule.paused ? null : schedule.next_due_at} />` },
  { name: "last", label: "Last", render: (schedule) => html`<${Last} schedule=${schedule} />` },
  { name: "error", label: "Problem", render: (schedule) => (schedule.error ? html`<span class="name">${schedule.error}</span>` : none) },
  { name: "actions", label: "Actions", render: (schedule) => html`<${Actions} schedule=${schedule} reload=${reload} />` },
];

export const Schedules = () => html`<${ListPage} title="Schedules" path="/schedules" filters=${["room"]} laterSeconds=${30}
  needsRoom="You see the schedules of rooms that you may read."
  form=${html`<${Filters} label="Filter schedules"><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} isFirst /><//>`}>
  ${(items, reload, isFiltered) => html`<${Table} caption="Schedules" columns=${columnsWith(reload)} rows=${items}
    rowKey=${(schedule) => `${schedule.room_id} ${schedule.name}`}
    empty=${isFiltered ? "This room has no schedules." : "There are no schedules. Write one with @job(schedule=…), Queue.schedules or 'zndraw-joblib schedules put'."} />`}<//>`;

function Actions({ schedule, reload }) {
  if (!canWriteRoom.value) return none;
  const path = `/rooms/${encodeURIComponent(schedule.room_id)}/schedules/${encodeURIComponent(schedule.name)}`;
  const run = () => act("POST", `${path}/run`).then(reload);
  const change = () => act("PATCH", path, { paused: !schedule.paused }).then(reload);
  const verb = schedule.paused ? "Resume" : "Pause";
  return html`<${Button} class="small" onClick=${run} success="A task is submitted." aria-label=${`Run ${schedule.name}`}>Run<//>
    <${Button} class="small" onClick=${change} success=${schedule.paused ? "It submits tasks again." : "It submits no tasks."} aria-label=${`${verb} ${schedule.name}`}>${verb}<//>`;
}

function ruleOf({ cron, every_seconds: every, time_zone: zone, at }) {
  if (cron) return zone === "UTC" ? cron : `${cron} ${zone}`;
  return every ? `every ${every} s` : `at ${at}`;
}

function Last({ schedule: { last_due_at: at, last_task_id: task } }) {
  if (!at) return none;
  return html`<a href=${href(["tasks", task])}><${Ago} at=${at} /></a>`;
}
