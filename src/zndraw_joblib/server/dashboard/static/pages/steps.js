// What a task waits for, and the tasks that wait for it, each with its status.
import { act, get } from "../api.js";
import { canOperate, config, me } from "../auth.js";
import { partsOf, plural, shortId, subject } from "../format.js";
import { html, useSignal } from "../lib.js";
import { usePoll } from "../live.js";
import { href } from "../router.js";
import { Button, Section, Status, TaskLink } from "../ui.js";
import { Detail } from "./tasks.js";
import { isOver } from "./timeline.js";

const PART = 10;
const POLICIES = {
  fail: "If one of them does not complete, this task fails.",
  run: "It runs after the last of them, however they end.",
  hold: "If one of them does not complete, it waits until that one is retried and completes.",
};

// The tasks with these ids; those that are deleted or may not be read only have an id.
async function read(ids, abort) {
  const answers = await Promise.allSettled(ids.map((id) => get(`/tasks/${id}`, {}, { signal: abort })));
  return answers.map(({ value }, index) => value ?? { id: ids[index] });
}

export function Steps({ task, reload }) {
  const { after, successors } = task;
  if (!after && !successors?.length) return null;
  const mayCancel = !config.value.read_only && !isOver(task.status) && successors?.length > 0 && (canOperate.value || task.created_by === me.value.id);
  const cancel = () => act("PATCH", `/tasks/${task.id}`, { status: "cancelled", tree: true }).then(reload);
  return html`<${Section} title="Steps" actions=${mayCancel && html`<${Button} onClick=${cancel} success="The task and what waits for it are cancelled."
      confirm=${{ title: "Cancel the task and what waits for it?", body: "This task, all tasks that wait for it, and all tasks below it end as cancelled.", action: "Cancel them" }}>Cancel with successors<//>`}>
    <div class="stack">${after && html`<div><h3>${task.waits ? "Waits for" : "Has waited for"}</h3>
      ${after.groups.length > 0 && html`<ul class="tree">${after.groups.map((id) => html`<li key=${id}><div class="child">group <a class="id" href=${href(["groups", id])} title=${id}>${shortId(id)}</a>
        ${after.waits_for.includes(id) && html`<span class="none">has not ended</span>`}</div></li>`)}</ul>`}
      <${Tasks} ids=${after.tasks} />
      <p class="help">${POLICIES[after.on_failure]}</p></div>`}
    ${successors?.length > 0 && html`<div><h3>${isOver(task.status) ? "Have waited for it" : "Wait for it"}</h3><${Tasks} ids=${successors} /></div>`}</div><//>`;
}

const Step = ({ task }) => html`<${Status} status=${task.status} waitsFor=${task.waits && "predecessor"} />
  <a class="what" href=${href(["tasks", task.id])} title=${`${task.job_name} · ${task.id}`}><b>${partsOf(task.job_name).name}</b> <span class="preview">${subject(task.payload)}</span></a> <${Detail} task=${task} />`;

// They are read again until all have ended.
function Tasks({ ids }) {
  const size = useSignal(PART);
  const isOpen = useSignal(true);
  const shown = ids.slice(0, size.value);
  const state = usePoll(async (abort) => {
    const tasks = await read(shown, abort);
    isOpen.value = tasks.some((task) => task.status && !isOver(task.status));
    return tasks;
  }, [shown.join(), isOpen.value], isOpen.value ? 10 : null);
  const left = ids.length - shown.length;
  return html`<ul class="tree">${(state.data ?? shown.map((id) => ({ id }))).map((task) => html`<li key=${task.id}><div class="child">${
      task.status ? html`<${Step} task=${task} />` : html`<${TaskLink} id=${task.id} />`}</div></li>`)}</ul>
    ${left > 0 && html`<button type="button" class="small" onClick=${() => (size.value += PART)}>${plural(left, "more task")}</button>`}`;
}
