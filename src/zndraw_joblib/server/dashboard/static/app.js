// The frame around the pages: configuration, token, navigation, keys, theme.
import { get, loadHostHeaders, lostSince } from "./api.js";
import { canReadAll, config, me, ownRoom, refused, rememberMe, setMe, setRoom, setToken, ssoFault, token } from "./auth.js";
import { effect, html, render, signal, useEffect, useRef } from "./lib.js";
import { isVisible, retryNow } from "./live.js";
import { pages } from "./pages/index.js";
import { go, href, route } from "./router.js";
import { theme, themes } from "./theme.js";
import { Between, Dialog, Empty, Failure, Find, Loading, Menu, Messages, Page, Questions } from "./ui.js";

const ICON = new URL("icon.svg", import.meta.url).href;
const failure = signal(null);
const showsKeys = signal(false);
const shown = () => pages.filter((page) => !page.needs || page.needs.value);

function Frame() {
  const { page: name, segments } = route.value;
  const all = shown();
  const named = pages.find((entry) => entry.name === name);
  const page = named && all.includes(named) ? named : null;
  const View = segments.length > 1 && page?.detail ? page.detail : page?.view;
  const key = segments.join("/");
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <div class="frame">
      <header class="bar">
        <a class="brand" aria-label=${config.value.title} href=${href(canReadAll.value ? "overview" : "tasks")}>
          <img src=${ICON} alt="" width="26" height="26" /><span class="title">${config.value.title}</span></a>
        <nav aria-label="Pages"><ul>
          ${all.filter((entry) => entry.place !== "more").map((entry) => html`<li key=${entry.name} class=${entry.place ?? ""}><${NavLink} entry=${entry} name=${name} /></li>`)}
          ${all.some((entry) => entry.place) && html`<li><${Menu} key=${key} label="More" isCurrent=${page?.place}>
            <ul>${all.filter((entry) => entry.place).map((entry) => html`<li key=${entry.name} class=${entry.place === "wide" ? "narrow" : ""}><${NavLink} entry=${entry} name=${name} /></li>`)}</ul><//></li>`}</ul></nav>
        <${Corner} />
      </header>
      <div class="content">
        <${Banner} />
        <main id="main" tabindex="-1">
          ${View ? html`<${View} key=${key} segments=${segments} />` : html`<${Missing} page=${named} />`}
        </main>
      </div>
    </div>`;
}

const NavLink = ({ entry, name }) => html`<a href=${href(entry.name)} aria-current=${entry.name === name ? "page" : undefined}>${entry.label}</a>`;

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

// An address that is no page; `t` is the beginning of a link to a task, without its id.
const Missing = ({ page }) => {
  const [name] = route.value.segments;
  if (page) return html`<${Page} title=${page.label}><${Empty}>You may not read this page. It is for operators; choose one above.<//><//>`;
  return html`<${Page} title=${name === "t" ? "Find a task" : "Not found"}>
    ${name !== "t" && html`<${Empty}>There is no page “${route.value.segments.join("/")}”. Choose one above, or find a task.<//>`}<${Find} /><//>`;
};

function Corner() {
  const leave = () => {
    setToken("");
    me.value = null;
    start();
  };
  return html`<div class="corner">
    ${!canReadAll.value && html`<${RoomChoice} />`}
    ${config.value.read_only && html`<span class="badge warn">read-only</span>`}
    <${Menu} title=${`${me.value?.id}, ${me.value?.is_superuser ? "superuser" : "user"}`} label=${html`<span class="who">${me.value?.id}</span>`}>
      <div class="field"><label for="theme">Colours</label>
        <select id="theme" value=${theme.value} onChange=${(event) => (theme.value = event.target.value)}>
          ${Object.entries(themes).map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select></div>
      <button type="button" class="small" onClick=${() => (showsKeys.value = true)}>Keys (?)</button>
      ${token.value && html`<button type="button" class="small" onClick=${leave}>Log out</button>`}
      <span class="help">Server ${config.value.version}</span><//>
  </div>`;
}

function RoomChoice() {
  const choose = async (event) => {
    event.preventDefault();
    const room = new FormData(event.target).get("room").trim();
    setRoom(room);
    await identify();
    go("tasks", {});
  };
  return html`<form class="room" onSubmit=${choose}><label for="own-room">Room</label>
    <input id="own-room" name="room" value=${ownRoom.value} required autocomplete="off" spellcheck=${false} size="14" />
    <button class="small">Show</button></form>`;
}

// The server is gone: the content stays, and all requests are repeated with pauses.
const Banner = () => lostSince.value && html`<div class="banner" role="alert">
  <span>The server has not answered for <${Between} from=${lostSince.value.toISOString()} />. What you see may be old.</span>
  <button type="button" class="small" onClick=${() => (retryNow.value += 1)}>Try now</button></div>`;

function Login() {
  const [input, first] = [useRef(), useRef()];
  const isHost = config.value.identity === "host";
  const signIn = config.value.sign_in;
  useEffect(() => (first.current ?? input.current)?.focus(), []);
  const logIn = async () => (await import("./sso.js")).begin();
  const enter = async (event) => {
    event.preventDefault();
    setToken(input.current.value.trim());
    await start();
  };
  return html`<main class="login" id="main"><form class="card" onSubmit=${enter}>
    <img src=${ICON} alt="" width="40" height="40" />
    <h1>${config.value.title}</h1>
    ${signIn && html`${signIn.fault
      ? html`<p class="help" role="status">${signIn.fault}</p>`
      : html`<button type="button" class="primary" ref=${first} onClick=${logIn}>Log in with ${signIn.provider}</button>`}
      ${ssoFault.value && html`<p class="failure" role="alert">${ssoFault.value}</p>`}
      <p class="help">Or with a token:</p>`}
    ${isHost && html`<p>You are not logged in to the application that this queue is part of. Log in there and load this page again, or enter a token.</p>`}
    <label for="token">Token</label>
    <input id="token" ref=${input} type="password" autocomplete="off" required aria-describedby="token-help" />
    <p id="token-help" class="help">The bearer token of a user, as for the API. This tab keeps it until you close it.</p>
    ${token.value === "" && refused.value?.wasToken && html`<${Failure} error=${refused.value} />`}
    <button class=${signIn && !signIn.fault ? "" : "primary"}>Open</button>
  </form></main>`;
}

function Keys() {
  if (!showsKeys.value) return null;
  const rows = [["/", "Go to the first filter"], ["?", "Show these keys"], ["Esc", "Close a dialog"],
    ...shown().map((page) => [`g ${page.key}`, page.label])];
  return html`<${Dialog} title="Keys" onClose=${() => (showsKeys.value = false)}>
    <dl class="keys">${rows.map(([key, text]) => html`<div key=${key}><dt>${key.split(" ").map((part) => html`<kbd>${part}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl><//>`;
}

let isGoing = false;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
  const page = isGoing && shown().find((entry) => entry.key === event.key);
  isGoing = event.key === "g" && !isGoing;
  if (isGoing) setTimeout(() => (isGoing = false), 1500);
  if (page) go(page.name);
  else if (event.key === "?") showsKeys.value = true;
  else if (event.key === "/") document.querySelector("[data-first]")?.focus();
  else return;
  event.preventDefault();
}

function App() {
  if (failure.value) return html`<main class="login" id="main"><h1 class="hidden">${config.value.title}</h1><${Failure} error=${failure.value} retry=${start} /></main>`;
  if (refused.value) return html`<${Login} />`;
  if (!me.value) return html`<${Loading} />`;
  return html`<${Frame} key=${me.value.permissions.join()} /><${Keys} /><${Questions} /><${Messages} />`;
}

async function identify() {
  setMe(await get("/me", { room: ownRoom.value }));
}

// Read the configuration and who the caller is. Asks for a token if there is none, or a wrong one.
async function start() {
  failure.value = null;
  refused.value = null;
  if (config.value.identity === "token" && !token.value) {
    refused.value = { wasToken: false };
    return;
  }
  rememberMe();
  try {
    await identify();
    if (!canReadAll.value && route.value.page === "overview") go("tasks");
  } catch (error) {
    if (error.status === 401) {
      const wasToken = Boolean(token.value);
      setToken("");
      refused.value = Object.assign(error, { wasToken });
    } else failure.value = error;
  }
}

// A new page begins at its top, and a screen reader says its title.
let shownPath = route.value.segments.join("/");
effect(() => {
  const path = route.value.segments.join("/");
  if (path === shownPath) return;
  shownPath = path;
  scrollTo(0, 0);
  setTimeout(() => document.querySelector("main h1")?.focus());
});

async function load() {
  // The page preloads it; another mode of the cache would read it twice.
  const response = await fetch("config.json");
  config.value = await response.json();
  await loadHostHeaders();
  if (config.value.sign_in) await (await import("./sso.js")).resume();
  document.addEventListener("keydown", onKey);
  render(html`<${App} />`, document.getElementById("app"));
  await start();
}

effect(() => isVisible.value && lostSince.peek() && (retryNow.value = retryNow.peek() + 1));
load();
