// What filters and forms suggest: the names of jobs, rooms and workers, as [value, label]. Read once a minute at most.
import { get, readParts } from "../api.js";
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
  const { items } = await (canReadAll.value ? readParts("/jobs", { deleted: true }) : get(`/rooms/${encodeURIComponent(ownRoom.value)}/jobs`, { limit: 200 }));
  return items.map((job) => [job.full_name, job.full_name]);
});

export const MAX_ROOMS = 200;
export const roomNames = remembered(async () => {
  if (!canReadAll.value) return ownRoom.value ? [[ownRoom.value, ownRoom.value]] : [];
  const { items } = await get("/rooms", { limit: MAX_ROOMS });
  return items.map((room) => [room.id, room.id]);
});

// Workers by name; those without one by id.
export const workerNames = remembered(async () => {
  const { items } = await readWorkers();
  return items.map((worker) => [worker.id, worker.name ?? worker.id]);
});

export const tagNames = remembered(async () => {
  if (!canReadAll.value && !ownRoom.value) return [];
  const { tags } = await get("/tasks/tags", { room: canReadAll.value ? undefined : ownRoom.value });
  return tags.map((tag) => [tag, tag]);
});

const MAX_NEAR = 5;

// How many letters to change, add or remove to make one text of another.
function distance(one, other) {
  let row = [...other].map((_, index) => index + 1);
  for (const [i, letter] of [...one].entries()) {
    let [before, left] = [i, i + 1];
    row = row.map((above, j) => {
      left = Math.min(above + 1, left + 1, before + (letter === other[j] ? 0 : 1));
      before = above;
      return left;
    });
  }
  return row.at(-1) ?? one.length;
}

// Which of the `options` a text means: { matches } by its whole label, by the last parts of it, or by any part; { near } if none does.
export function matchesOf(text, options) {
  const sought = text.toLowerCase();
  const lower = options.map(([value, label]) => [label.toLowerCase(), value.toLowerCase(), [value, label]]);
  const tests = [
    (label, value) => label === sought || value === sought,
    (label) => label.endsWith(`:${sought}`),
    (label, value) => label.includes(sought) || value.startsWith(sought),
  ];
  for (const test of tests) {
    const matches = lower.filter(([label, value]) => test(label, value)).map(([, , option]) => option);
    if (matches.length) return { matches, near: [] };
  }
  const far = ([label]) => Math.min(distance(sought, label), distance(sought, label.split(":").at(-1)));
  const near = lower.map((entry) => [far(entry), entry[2]]).filter(([size]) => size <= Math.max(2, sought.length / 2));
  return { matches: [], near: near.sort(([a], [b]) => a - b).slice(0, MAX_NEAR).map(([, option]) => option) };
}

// What is entered in a filter, with whole names instead of parts that only one has.
export const wholeOf = (text, options) => text.split(",").map((part) => {
  const { matches } = part.trim() ? matchesOf(part.trim(), options) : { matches: [] };
  return matches.length === 1 ? matches[0][0] : part.trim();
}).join(",");
