// The pages by the first part of their address. `needs` hides a page from callers who may not read it; a key after
// `g` opens it. Those of the `place` "more" are in the menu, those of "wide" too if the window is narrow. To add one, write a module that exports a component, and a line here.
import { canReadAll } from "../auth.js";
import { html, signal } from "../lib.js";
import { Failure, Loading } from "../ui.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Overview } from "./overview.js";
import { Tasks } from "./tasks.js";
import { Task } from "./task.js";
import { Room, Rooms } from "./rooms.js";
import { Worker, Workers } from "./workers.js";

// A page whose module is loaded when it is shown first; `_ON_DEMAND` in http/pages.py has these modules.
function onDemand(load, name) {
  const loaded = signal({});
  const read = () => load().then((module) => (loaded.value = { View: module[name] }), (error) => (loaded.value = { error }));
  return (props) => {
    const { View, error } = loaded.value;
    if (View) return html`<${View} ...${props} />`;
    if (error) return html`<${Failure} error=${error} retry=${read} />`;
    read();
    return html`<${Loading} />`;
  };
}

export const pages = [
  { name: "overview", label: "Overview", key: "o", view: Overview, needs: canReadAll },
  { name: "tasks", label: "Tasks", key: "t", view: Tasks, detail: Task },
  { name: "jobs", label: "Jobs", key: "j", view: Jobs, detail: Job },
  { name: "rooms", label: "Rooms", key: "r", place: "wide", view: Rooms, detail: Room },
  { name: "workers", label: "Workers", key: "w", view: Workers, detail: Worker },
  { name: "schedules", label: "Schedules", key: "d", place: "wide", view: onDemand(() => import("./schedules.js"), "Schedules") },
  { name: "groups", label: "Groups", key: "g", place: "more", view: onDemand(() => import("./groups.js"), "Groups"), detail: onDemand(() => import("./groups.js"), "Group") },
  { name: "webhooks", label: "Webhooks", key: "h", place: "more", view: onDemand(() => import("./webhooks.js"), "Webhooks") },
  { name: "limits", label: "Limits", key: "l", place: "more", view: onDemand(() => import("./limits.js"), "Limits"), needs: canReadAll },
  { name: "providers", label: "Providers", key: "p", place: "more", view: onDemand(() => import("./providers.js"), "Providers"), needs: canReadAll },
  { name: "sweeper", label: "Sweeper", key: "s", place: "more", view: onDemand(() => import("./sweeper.js"), "Sweeper"), needs: canReadAll },
  { name: "settings", label: "Settings", key: "e", place: "more", view: onDemand(() => import("./settings.js"), "Settings"), needs: canReadAll },
  { name: "audit", label: "Audit", key: "a", place: "more", view: onDemand(() => import("./audit.js"), "Audit") },
];
