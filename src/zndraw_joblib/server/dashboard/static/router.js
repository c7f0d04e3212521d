// The address: #/tasks/ID?status=failed. It is the whole state of a page, so that a link shows the same.
import { computed, signal } from "./lib.js";

const current = signal(location.hash);
addEventListener("hashchange", () => (current.value = location.hash));

export const route = computed(() => {
  const [path, query = ""] = current.value.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decode);
  return { page: segments[0] ?? "overview", segments, query: new URLSearchParams(query) };
});

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Return the address of a page. `query` has texts or lists of texts; empty ones are left out.
export function href(segments, query = {}) {
  const path = [segments].flat().map((segment) => encodeURIComponent(segment)).join("/");
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of [value].flat()) if (item) params.append(name, item);
  }
  const text = params.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

// Go to another page; the browser's back button returns.
export const go = (segments, query) => (location.hash = href(segments, query));

// Show another page instead of the present one, which the back button skips.
export function replace(segments, query) {
  history.replaceState(null, "", href(segments, query));
  current.value = location.hash;
}

// Show the tasks that were created between two times, in seconds.
export const showTasksBetween = (filter) => (from, to) =>
  go("tasks", { ...filter, since: new Date(Math.floor(from) * 1000).toISOString(), until: new Date(Math.ceil(to) * 1000).toISOString() });

// Change parts of the query; null and "" remove them. Without `keep`, the address replaces the present one.
export function setQuery(changes, { keep = false } = {}) {
  const { segments, query } = route.value;
  const all = {};
  for (const name of new Set(query.keys())) all[name] = query.getAll(name);
  const target = href(segments.length ? segments : ["overview"], { ...all, ...changes });
  if (target === location.hash) return;
  if (keep) location.hash = target;
  else {
    history.replaceState(null, "", target);
    current.value = target;
  }
}
