// The attempts of a task: when it waited, when it ran, and how each attempt ended.
import { between, count, duration, shortId } from "../format.js";
import { html } from "../lib.js";
import { Ago, Badge, nameOfWorker, now, Section, Status, WorkerLink } from "../ui.js";

const TERMINAL = ["completed", "failed", "cancelled"];
export const isOver = (status) => TERMINAL.includes(status);
const isHeld = ({ status }) => ["claimed", "running"].includes(status);

// The stretches of time between the transitions: { status, from, to, attempt }. One of `waits` ends with the wait for other tasks.
function stretches(transitions, waits) {
  const parts = [];
  for (const [index, { at, status, attempt_number: attempt }] of transitions.entries()) {
    const next = transitions[index + 1];
    if (isOver(status)) continue;
    const isWait = status === "pending" && (next ? next.reason === "wait_ended" : waits);
    parts.push({ status: isWait ? "waits" : status, attempt, from: new Date(at), to: next ? new Date(next.at) : new Date(now.value), isOpen: !next });
  }
  return parts;
}

const WORDS = { waits: "waited for other tasks", pending: "waited", claimed: "was claimed", running: "ran" };

function Bars({ transitions, waits }) {
  const parts = stretches(transitions, waits);
  const start = new Date(transitions[0].at);
  const whole = Math.max(1, (parts.at(-1)?.to ?? start) - start);
  return html`<div class="timeline" role="img" aria-label=${parts.map((part) => `${WORDS[part.status]} ${duration(between(part.from, part.to))}`).join(", then ")}>
    ${parts.map((part, index) => html`<span key=${index} class="stretch ${part.status}" style=${{ width: `max(3px, ${((part.to - part.from) / whole) * 100}%)` }}
      title=${`${WORDS[part.status]} ${duration(between(part.from, part.to))}${part.attempt ? `, attempt ${part.attempt}` : ""}`}></span>`)}</div>`;
}

function total(parts, status) {
  return parts.filter((part) => part.status === status).reduce((sum, part) => sum + between(part.from, part.to), 0);
}

// The transitions by the claim that they belong to; those before the first claim come first.
function claimsOf(transitions) {
  const claims = new Map();
  for (const transition of transitions) claims.set(transition.attempt, [...(claims.get(transition.attempt) ?? []), transition]);
  return [...claims.values()];
}

const MAX_ATTEMPTS = 20;

export function Timeline({ history, waits = false }) {
  const { transitions } = history;
  if (!transitions.length) return null;
  const parts = stretches(transitions, waits);
  const [forOthers, waited, claimed, ran] = ["waits", "pending", "claimed", "running"].map((status) => total(parts, status));
  const claims = claimsOf(transitions);
  return html`<${Section} title="Timeline">
    <${Bars} transitions=${transitions} waits=${waits} />
    <p class="legend">${forOthers > 0 && html`<span class="key waits">waited for other tasks ${duration(forOthers)}</span>`}
      ${waited > 0 && html`<span class="key pending">waited ${duration(waited)}</span>`}
      ${claimed > 0 && html`<span class="key claimed">was claimed ${duration(claimed)}</span>`}
      ${ran > 0 && html`<span class="key running">ran ${duration(ran)}</span>`}</p>
    ${claims.length > MAX_ATTEMPTS && html`<p class="help">The last ${MAX_ATTEMPTS} of ${count(claims.length - 1)} claims.</p>`}
    <ol class="attempts">${claims.slice(-MAX_ATTEMPTS).map((steps, index, shown) => html`<li key=${steps[0].attempt}>
      ${steps[0].attempt === 0 ? html`<${Steps} steps=${steps} /> ` : html`<${Attempt} steps=${steps} isLast=${index === shown.length - 1} />`}</li>`)}</ol><//>`;
}

// The error of the last attempt is shown above.
function Attempt({ steps, isLast }) {
  const { attempt_number: number, worker_id: worker } = steps[0];
  const end = steps.find((step) => !isHeld(step));
  const start = steps.find(({ status }) => status === "running");
  const ran = start && between(start.at, end?.at ?? new Date(now.value).toISOString());
  const isBack = end?.status === "pending";
  return html`<details open=${isLast}><summary><strong>${number ? `Attempt ${number}` : "Not started"}</strong>
      ${isBack ? html` <${Badge} tone=${end.error ? "bad" : "warn"}>${end.error ? "failed" : "given back"}<//>` : html` <${Status} status=${(end ?? steps.at(-1)).status} />`}
      ${" "}<span class="help">${start && `ran ${duration(ran)}`}${worker && ` on ${nameOfWorker(worker) ?? shortId(worker)}`}</span>
      ${!isLast && end?.error && html`<span class="clip error">${end.error.split("\n")[0]}</span>`}</summary>
    <${Steps} steps=${steps} hasError=${!isLast} /></details>`;
}

const Steps = ({ steps, hasError }) => html`<ul class="transitions">${steps.map((step, index) => html`<li key=${index}>
  <${Ago} at=${step.at} /> <${Status} status=${step.status} />
  <span>${index > 0 && html`<span class="help">after ${duration(between(steps[index - 1].at, step.at))}</span>`}
    ${step.status === "claimed" && step.worker_id && html` by <${WorkerLink} id=${step.worker_id} />`}
    ${step.reason && html` <code>${step.reason}</code>`}${step.run_at && html` · due <${Ago} at=${step.run_at} />`}
    ${hasError && step.error && html`<span class="error">${step.error}</span>`}</span></li>`)}</ul>`;
