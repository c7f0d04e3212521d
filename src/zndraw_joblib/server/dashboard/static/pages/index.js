// The pages by the first part of their address. `needs` hides a page from callers who may not read it; a key after
// `g` opens it. Those of the `place` "more" are in the menu, those of "wide" too if the window is narrow. To add one, write a module that exports a component, and a line here.
import { canReadAll } from "../auth.js";
import { Audit } from "./audit.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Limits } from "./limits.js";
import { Overview } from "./overview.js";
import { Providers } from "./providers.js";
import { Schedules } from "./schedules.js";
import { Settings } from "./settings.js";
import { Sweeper } from "./sweeper.js";
import { Tasks } from "./tasks.js";
import { Task } from "./task.js";
import { Room, Rooms } from "./rooms.js";
import { Worker, Workers } from "./workers.js";

export const pages = [
  { name: "overview", label: "Overview", key: "o", view: Overview, needs: canReadAll },
  { name: "tasks", label: "Tasks", key: "t", view: Tasks, detail: Task },
  { name: "jobs", label: "Jobs", key: "j", view: Jobs, detail: Job },
  { name: "rooms", label: "Rooms", key: "r", place: "wide", view: Rooms, detail: Room },
  { name: "workers", label: "Workers", key: "w", view: Workers, detail: Worker },
  { name: "schedules", label: "Schedules", key: "d", place: "wide", view: Schedules },
  { name: "limits", label: "Limits", key: "l", place: "more", view: Limits, needs: canReadAll },
  { name: "providers", label: "Providers", key: "p", place: "more", view: Providers, needs: canReadAll },
  { name: "sweeper", label: "Sweeper", key: "s", place: "more", view: Sweeper, needs: canReadAll },
  { name: "settings", label: "Settings", key: "e", place: "more", view: Settings, needs: canReadAll },
  { name: "audit", label: "Audit", key: "a", place: "more", view: Audit },
];
