// What filters and forms suggest: the names of jobs, rooms and workers, as [value, label]. Read once a minute at most.
import { get } from "../api.js";
import { canReadAll, me, ownRoom } from "../auth.js";
import { readWorkers } from "./workers.js";

const KEEP_MS = 60_000;

function remembered(load) {
  let last = { at: 0 };
  return () => {
    const key = `${me.value?.id} ${ownRoom.value}`;
    if (Date.now() - last.at > KEEP_MS || last.key !== key) last = { at: Date.now(), key, values: load().catch(() => []) };
    return last.values;
  };
}

export const jobNames = remembered(async () => {
  if (!canReadAll.value && !ownRoom.value) return [];
  const { items } = await (canReadAll.value ? get("/jobs", { limit: 200 }) : get(`/rooms/${encodeURIComponent(ownRoom.value)}/jobs`, { limit: 200 }));
  return items.map((job) => [job.full_name, job.full_name]);
});

export const roomNames = remembered(async () => {
  if (!canReadAll.value) return ownRoom.value ? [[ownRoom.value, ownRoom.value]] : [];
  const { items } = await get("/rooms", { limit: 200 });
  return items.map((room) => [room.id, room.id]);
});

// Workers by name; those without one by id.
export const workerNames = remembered(async () => {
  const { items } = await readWorkers();
  return items.map((worker) => [worker.id, worker.name ?? worker.id]);
});
