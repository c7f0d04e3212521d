// The attempts of a task: when it waited, when it ran, and how each attempt ended.
import { between, duration, plural } from "../format.js";
import { html } from "../lib.js";
import { Ago, now, Section, Status, WorkerLink } from "../ui.js";

const TERMINAL = ["completed", "failed", "cancelled"];
export const isOver = (status) => TERMINAL.includes(status);

// The stretches of time between the transitions: { status, from, to, attempt }.
function stretches(transitions) {
  const parts = [];
  for (const [index, { at, status, attempt_number: attempt }] of transitions.entries()) {
    const next = transitions[index + 1];
    if (isOver(status)) continue;
    parts.push({ status, attempt, from: new Date(at), to: next ? new Date(next.at) : new Date(now.value), isOpen: !next });
  }
  return parts;
}

const WORDS = { pending: "waited", claimed: "was claimed", running: "ran" };

function Bars({ transitions }) {
  const parts = stretches(transitions);
  const start = new Date(transitions[0].at);
  const whole = Math.max(1, (parts.at(-1)?.to ?? start) - start);
  return html`<div class="timeline" role="img" aria-label=${parts.map((part) => `${WORDS[part.status]} ${duration((part.to - part.from) / 1000)}`).join(", then ")}>
    ${parts.map((part, index) => html`<span key=${index} class="stretch ${part.status}" style=${{ width: `max(3px, ${((part.to - part.from) / whole) * 100}%)` }}
      title=${`${WORDS[part.status]} ${duration((part.to - part.from) / 1000)}${part.attempt ? `, attempt ${part.attempt}` : ""}`}></span>`)}</div>`;
}

function total(transitions, statuses) {
  return stretches(transitions).filter((part) => statuses.includes(part.status)).reduce((sum, part) => sum + (part.to - part.from) / 1000, 0);
}

// `error` is the one that the page shows above: it is not repeated. Of a task that has ended, the changes are folded.
export function Timeline({ history, error }) {
  const { transitions } = history;
  if (!transitions.length) return null;
  const [claimed, worked] = ["claimed", "running"].map((status) => total(transitions, [status]));
  const attempts = new Set(transitions.map((transition) => transition.attempt_number).filter(Boolean)).size;
  const isEnded = isOver(transitions.at(-1).status);
  const summary = [attempts > 0 && plural(attempts, "attempt"), plural(transitions.length, "change")].filter(Boolean).join(", ");
  return html`<${Section} title="Timeline" class="wide">
    <${Bars} transitions=${transitions} />
    <p class="legend"><span class="key pending">waited ${duration(total(transitions, ["pending"]))}</span>
      ${claimed > 0 && html`<span class="key claimed">was claimed ${duration(claimed)}</span>`}
      ${worked > 0 && html`<span class="key running">ran ${duration(worked)}</span>`}</p>
    <details key=${String(isEnded)} open=${!isEnded}><summary>${summary}</summary><ol class="transitions">${transitions.map((transition, index) => html`<li key=${index}>
      <${Ago} at=${transition.at} /> <${Status} status=${transition.status} />
      <span class="help">${index ? `+${duration(between(transitions[index - 1].at, transition.at))}` : ""}</span>
      <span class="what">${transition.attempt_number ? `attempt ${transition.attempt_number}` : transition.attempt > 0 && "not started"} ${transition.worker_id && html` on <${WorkerLink} id=${transition.worker_id} />`}
        ${transition.reason && html` <code>${transition.reason}</code>`}${transition.run_at && html` · due <${Ago} at=${transition.run_at} />`}
        ${transition.error && transition.error !== error && html`<span class="error clip" title=${transition.error}>${transition.error}</span>`}</span></li>`)}</ol></details><//>`;
}
