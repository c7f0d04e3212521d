// Who the caller is, and what it may do. The token is in this tab's session storage only, never in a URL.
import { computed, signal } from "./lib.js";

const [TOKEN, ROOM, ME] = ["token", "room", "me"].map((name) => `zndraw-joblib ${name}`);
const stored = (key) => {
  try {
    return sessionStorage.getItem(key) ?? "";
  } catch {
    return ""; // the browser forbids storage: the values stay in memory
  }
};
function store(key, text) {
  try {
    text ? sessionStorage.setItem(key, text) : sessionStorage.removeItem(key);
  } catch {
    // As above.
  }
}

export const config = signal({ api: "v1/joblib", identity: "token", read_only: false, version: "", title: "" });
export const token = signal(stored(TOKEN));
// Why the page asks for a token; null while the caller is known or not asked for.
export const refused = signal(null);
// Why the log-in at the identity provider did not succeed.
export const ssoFault = signal("");
// What GET /me says about the caller; null until it is known.
export const me = signal(null);
// The room that a caller without `all:read` looks at.
export const ownRoom = signal(stored(ROOM));

export function setToken(text) {
  token.value = text;
  refused.value = null;
  store(TOKEN, text);
  store(ME, "");
}

export function setRoom(room) {
  ownRoom.value = room;
  store(ROOM, room);
}

// The caller as GET /me returns it; one with a token is remembered, so that a page begins without waiting for it.
export function setMe(caller) {
  if (JSON.stringify(me.value) !== JSON.stringify(caller)) me.value = caller;
  store(ME, token.value && JSON.stringify(caller));
}

export function rememberMe() {
  try {
    if (token.value && stored(ME)) me.value = JSON.parse(stored(ME));
  } catch {
    store(ME, ""); // not what `setMe` has stored: the page asks
  }
}

const has = (name) => Boolean(me.value?.permissions?.includes(name));

// What the caller may see and do. The API checks it again; the page only offers what would succeed.
export const canReadAll = computed(() => has("all:read"));
export const canOperate = computed(() =>
  (has("all:operate") || has("room:operate")) && !config.value.read_only);
export const canWriteRoom = computed(() =>
  (has("all:operate") || has("room:write")) && !config.value.read_only);
