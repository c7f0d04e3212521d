// The schedules of all rooms: when each is due, and what became of its last due time.
import { act } from "../api.js";
import { canReadAll, canWriteRoom, ownRoom } from "../auth.js";
import { exact } from "../format.js";
import { html, useSignal } from "../lib.js";
import { href, route } from "../router.js";
import { Ago, Button, Filters, JobLink, ListPage, RoomLink, Table, TextFilter, toast } from "../ui.js";
import { FormDialog } from "./form.js";

const none = html`<span class="none">–</span>`;
const columnsWith = (reload, edit) => [
  { name: "name", label: "Schedule", render: (schedule) => html`<span class="name">${schedule.name}</span>` },
  { name: "room", label: "Room", render: (schedule) => html`<${RoomLink} id=${schedule.room_id} />` },
  { name: "job", label: "Job", render: (schedule) => html`<${JobLink} name=${schedule.job} />` },
  { name: "rule", label: "Due", render: (schedule) => html`<code>${ruleOf(schedule)}</code>` },
  { name: "state", label: "State", render: (schedule) => (schedule.paused ? "paused" : none) },
  { name: "next", label: "Next", render: (schedule) => html`<${Ago} at=${schedule.paused ? null : schedule.next_due_at} />` },
  { name: "last", label: "Last", render: (schedule) => html`<${Last} schedule=${schedule} />` },
  { name: "error", label: "Problem", render: (schedule) => (schedule.error ? html`<span class="name">${schedule.error}</span>` : none) },
  { name: "actions", label: "Actions", render: (schedule) => html`<${Actions} schedule=${schedule} reload=${reload} edit=${edit} />` },
];

export function Schedules() {
  // The schedule that is changed, {} for a new one.
  const edited = useSignal(null);
  const edit = (schedule) => (edited.value = schedule);
  const filter = html`<div class="heading"><${Filters} label="Filter schedules"><${TextFilter} name="room" label="Room" placeholder=${canReadAll.value ? "" : ownRoom.value} isFirst /><//>
    ${canWriteRoom.value && html`<${Button} tone="primary" onClick=${() => edit({})}>New schedule<//>`}</div>`;
  return html`<${ListPage} title="Schedules" path="/schedules" filters=${["room"]} laterSeconds=${30}
    needsRoom="You see the schedules of rooms that you may read." form=${filter}>
    ${(items, reload, isFiltered) => html`<${Table} caption="Schedules" columns=${columnsWith(reload, edit)} rows=${items}
      rowKey=${(schedule) => `${schedule.room_id} ${schedule.name}`}
      empty=${isFiltered ? "This room has no schedules." : "There are no schedules. Write one here, with @job(schedule=…), Queue.schedules or 'zndraw-joblib schedules put'."} />
      ${edited.value && html`<${ScheduleForm} schedule=${edited.value} reload=${reload} onClose=${() => edit(null)} />`}`}<//>`;
}

const pathOf = (room, name) => `/rooms/${encodeURIComponent(room)}/schedules/${encodeURIComponent(name)}`;

const choices = (...names) => names.map((name) => [name, name]);
const FIELDS = [
  { name: "job", label: "Job", help: "Its full name: room:category:name", needed: true },
  { name: "cron", label: "Cron expression", help: "Minute, hour, day, month, weekday: 0 3 * * *" },
  { name: "time_zone", label: "Time zone", help: "Of the expression, like Europe/Berlin", initial: "UTC" },
  { name: "every_seconds", label: "Or every … seconds", kind: "number", help: "At least 1" },
  { name: "at", label: "Or once, at", kind: "time", help: "Local time" },
  { name: "payload", label: "Payload", kind: "json", help: "Of each task, as JSON", initial: "{}" },
  { name: "overlap", label: "While a task has not ended", kind: "choice", options: choices("allow", "skip", "queue_one"), initial: "allow", help: "What a due time does", more: true },
  { name: "catch_up", label: "Missed due times", kind: "choice", options: choices("none", "last", "all"), initial: "last", help: "Which of them run later", more: true },
  { name: "max_catch_up", label: "At most so many missed", kind: "number", help: "With all; 100 by default", more: true },
  { name: "jitter_seconds", label: "Jitter in seconds", kind: "number", help: "Up to so much later, at random", more: true },
  { name: "starts_at", label: "First time", kind: "time", help: "Local time", more: true },
  { name: "ends_at", label: "Last time", kind: "time", help: "Local time", more: true },
  { name: "priority", label: "Priority", kind: "number", help: "A higher one is claimed first", more: true },
  { name: "expires_in_seconds", label: "Expires in seconds", kind: "number", help: "Fails if no worker claims it by then", more: true },
  { name: "max_attempts", label: "Attempts", kind: "number", help: "Instead of the job's", more: true },
  { name: "unique", label: "Unique", kind: "json", help: 'No second task with this key: {"key": "sync"}', more: true },
  { name: "tags", label: "Tags", kind: "json", help: 'Of each task: ["nightly"]', more: true },
  { name: "requires", label: "Requires", kind: "json", help: 'Labels of the workers that may run its tasks: {"gpu": "a100"}', more: true },
  { name: "prefer", label: "Prefers", kind: "json", help: 'Labels of the workers that get its tasks first, if they wait: {"host": "n7"}', more: true },
  { name: "cost", label: "Slots", kind: "number", help: "Of its worker, instead of the job's", more: true },
  { name: "debounce", label: "Debounce", kind: "json", help: 'With unique: {"seconds": 60} after the last due time or submit', more: true },
];

function ScheduleForm({ schedule, reload, onClose }) {
  const isNew = !schedule.name;
  const room = isNew ? route.value.query.get("room") || ownRoom.value || "default" : schedule.room_id;
  const identity = [
    { name: "name", label: "Name", help: "Letters, digits, _ - and .", needed: true, fixed: !isNew },
    { name: "room_id", label: "Room", help: "Where its tasks are", needed: true, fixed: !isNew || !canReadAll.value },
  ];
  const send = async ({ name, room_id: roomId, ...body }) => {
    await act("PUT", pathOf(roomId, name), body);
    toast("The schedule is written.");
    reload();
  };
  return html`<${FormDialog} title=${isNew ? "New schedule" : `Edit the schedule ${schedule.name}`} action=${isNew ? "Create the schedule" : "Change the schedule"}
    about="Its tasks are yours. Fill in one of: a cron expression, an interval, a time." fields=${[...identity, ...FIELDS]}
    value=${{ ...schedule, room_id: room }} send=${send} onClose=${onClose} />`;
}

function Actions({ schedule, reload, edit }) {
  if (!canWriteRoom.value) return none;
  const path = pathOf(schedule.room_id, schedule.name);
  const run = () => act("POST", `${path}/run`).then(reload);
  const change = () => act("PATCH", path, { paused: !schedule.paused }).then(reload);
  const verb = schedule.paused ? "Resume" : "Pause";
  const remove = () => act("DELETE", path).then(reload);
  return html`<span class="actions"><${Button} class="small" onClick=${run} success="A task is submitted." aria-label=${`Run ${schedule.name}`}>Run<//>
    <${Button} class="small" onClick=${change} success=${schedule.paused ? "It submits tasks again." : "It submits no tasks."} aria-label=${`${verb} ${schedule.name}`}>${verb}<//>
    <${Button} class="small" onClick=${() => edit(schedule)} aria-label=${`Edit ${schedule.name}`}>Edit<//>
    <${Button} class="small deletes" onClick=${remove} success="The schedule is deleted." aria-label=${`Delete ${schedule.name}`}
      confirm=${{ title: `Delete the schedule ${schedule.name}?`, body: "Its tasks stay.", action: "Delete the schedule" }}>Delete<//></span>`;
}

function ruleOf({ cron, every_seconds: every, time_zone: zone, at }) {
  if (cron) return zone === "UTC" ? cron : `${cron} ${zone}`;
  return every ? `every ${every} s` : `at ${exact(at)}`;
}

function Last({ schedule: { last_due_at: at, last_task_id: task } }) {
  if (!at) return none;
  return html`<a href=${href(["tasks", task])}><${Ago} at=${at} /></a>`;
}
