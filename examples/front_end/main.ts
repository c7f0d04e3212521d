// The page: a form that submits a task, the room's tasks with a button to cancel each, and what one task does.
import { Queue, type TaskEvent } from "./queue.js";
import type { TaskResponse } from "./rest";

const element = <Kind extends HTMLElement>(id: string): Kind => document.getElementById(id) as Kind;
const query = new URLSearchParams(location.search);
const queue = new Queue(
  query.get("server") ?? location.origin,
  location.hash.slice(1), // the token: a fragment is not sent to the server of the page
  query.get("room") ?? "lab",
);

const ENDED: readonly TaskResponse["status"][] = ["completed", "failed", "cancelled"];

function row(task: TaskResponse): HTMLLIElement {
  const item = document.createElement("li");
  item.dataset["status"] = task.status;
  item.append(`${task.job_name}: ${task.status} `);
  if (!ENDED.includes(task.status)) {
    const button = document.createElement("button");
    button.textContent = "Cancel";
    button.onclick = () => attempt(() => queue.cancel(task.id));
    item.append(button);
  }
  return item;
}

async function list(): Promise<void> {
  element("tasks").replaceChildren(...(await queue.tasks()).map(row));
}

function describe(event: TaskEvent): string {
  switch (event.event) {
    case "snapshot":
      return `${event.data.status} (attempt ${event.data.attempt})`;
    case "status":
      return event.data.data.error ?? event.data.data.status;
    case "progress":
      return `${event.data.data.progress.current ?? "?"} of ${event.data.data.progress.total ?? "?"}`;
    case "log":
      return event.data.data.lines.map((line) => line.text).join("\n");
    case "result":
      return `a result of ${event.data.data.size} bytes`;
    case "resync":
      return `events are missing: ${event.data.reason}`;
    case "end":
      return "the end";
  }
}

async function attempt(act: () => Promise<unknown>): Promise<void> {
  element("problem").textContent = "";
  try {
    await act();
  } catch (error) {
    element("problem").textContent = String(error);
  }
}

element<HTMLFormElement>("form").onsubmit = (event) => {
  event.preventDefault();
  void attempt(async () => {
    const payload: unknown = JSON.parse(element<HTMLTextAreaElement>("payload").value);
    const task = await queue.submit(element<HTMLInputElement>("job").value, payload as Record<string, unknown>);
    element("events").textContent = "";
    for await (const event of queue.follow(task.id)) element("events").append(`${event.event}: ${describe(event)}\n`);
  });
};

const refresh = () => void attempt(list);
const socket = queue.watch(refresh);
socket.on("task_status_event", refresh);
socket.on("task_progress", ({ progress }) => {
  element("progress").textContent = progress.message ?? "";
});
socket.on("problem", (problem) => {
  element("problem").textContent = problem.detail ?? problem.title;
});
