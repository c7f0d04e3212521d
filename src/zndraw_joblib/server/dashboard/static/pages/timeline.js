// The attempts of a task: when it waited, when it ran, and how each attempt ended.
import { between, duration } from "../format.js";
import { html } from "../lib.js";
import { now, Section, Status, Time, WorkerLink } from "../ui.js";

const TERMINAL = ["completed", "failed", "cancelled"];
export const isOver = (status) => TERMINAL.includes(status);

// The stretches of time between the transitions: { status, from, to, attempt }.
function stretches(transitions) {
  const found = [];
  for (const [index, { at, status, attempt_number: attempt }] of transitions.entries()) {
    const next = transitions[index + 1];
    if (isOver(status)) continue;
    found.push({ status, attempt, from: new Date(at), to: next ? new Date(next.at) : new Date(now.value), isOpen: !next });
  }
  return found;
}

const WORDS = { pending: "waited", claimed: "was claimed", running: "ran" };

function Bars({ transitions }) {
  const found = stretches(transitions);
  const start = new Date(transitions[0].at);
  const whole = Math.max(1, (found.at(-1)?.to ?? start) - start);
  return html`<div class="timeline" role="img" aria-label=${found.map((each) => `${WORDS[each.status]} ${duration((each.to - each.from) / 1000)}`).join(", then ")}>
    ${found.map((each, index) => html`<span key=${index} class="stretch ${each.status}" style=${{ width: `max(3px, ${((each.to - each.from) / whole) * 100}%)` }}
      title=${`${WORDS[each.status]} ${duration((each.to - each.from) / 1000)}${each.attempt ? `, attempt ${each.attempt}` : ""}`}></span>`)}</div>`;
}

function total(transitions, statuses) {
  return stretches(transitions).filter((each) => statuses.includes(each.status)).reduce((sum, each) => sum + (each.to - each.from) / 1000, 0);
}

export function Timeline({ history }) {
  const { transitions } = history;
  if (!transitions.length) return null;
  const [claimed, worked] = ["claimed", "running"].map((status) => total(transitions, [status]));
  return html`<${Section} title="Timeline" class="wide">
    <${Bars} transitions=${transitions} />
    <p class="legend"><span class="key pending">waited ${duration(total(transitions, ["pending"]))}</span>
      ${claimed > 0 && html`<span class="key claimed">was claimed ${duration(claimed)}</span>`}
      ${worked > 0 && html`<span class="key running">ran ${duration(worked)}</span>`}</p>
    <ol class="transitions">${transitions.map((each, index) => html`<li key=${index}>
      <${Time} at=${each.at} /> <${Status} status=${each.status} />
      <span class="help">${index ? `+${duration(between(transitions[index - 1].at, each.at))}` : ""}</span>
      <span class="what">${each.attempt_number ? `attempt ${each.attempt_number}` : each.attempt > 0 && "not started"} ${each.worker_id && html` on <${WorkerLink} id=${each.worker_id} />`}
        ${each.reason && html` <code>${each.reason}</code>`}${each.run_at && html` · due <${Time} at=${each.run_at} />`}
        ${each.error && html`<span class="error">${each.error}</span>`}</span></li>`)}</ol><//>`;
}
