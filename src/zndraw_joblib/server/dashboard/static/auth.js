// Who the caller is, and what it may do. The token is in this tab's session storage only, never in a URL.
import { computed, signal } from "./lib.js";

const KEY = "zndraw-joblib token";
const read = () => {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // the browser forbids storage: the token stays in memory
  }
};

export const config = signal({ api: "v1/joblib", identity: "token", read_only: false, version: "", title: "" });
export const token = signal(read());
// Why the page asks for a token; null while the caller is known or not asked for.
export const refused = signal(null);
// What GET /me says about the caller; null until it is known.
export const me = signal(null);
// The room that a caller without `all:read` looks at.
export const ownRoom = signal(sessionRoom());

function sessionRoom() {
  try {
    return sessionStorage.getItem("zndraw-joblib room") ?? "";
  } catch {
    return "";
  }
}

export function setToken(text) {
  token.value = text;
  refused.value = null;
  try {
    text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY);
  } catch {
    // It stays in memory.
  }
}

export function setRoom(room) {
  ownRoom.value = room;
  try {
    sessionStorage.setItem("zndraw-joblib room", room);
  } catch {
    // It stays in memory.
  }
}

const has = (name) => Boolean(me.value?.permissions?.includes(name));

// What the caller may see and do. The API checks it again; the page only offers what would succeed.
export const canReadAll = computed(() => has("all:read"));
export const canOperate = computed(() => has("all:operate") && !config.value.read_only);
export const canWriteRoom = computed(() =>
  (has("all:operate") || has("room:write")) && !config.value.read_only);
