// The settings in force of the server that responds; those that were changed first.
import { get } from "../api.js";
import { html } from "../lib.js";
import { stringify } from "../json.js";
import { usePoll } from "../live.js";
import { plural } from "../format.js";
import { route } from "../router.js";
import { Badge, ChoiceFilter, Facts, Filters, Loaded, Page, Table, TextFilter } from "../ui.js";

const isChanged = (setting) => setting.source !== "default";
const shownValue = (value) => (typeof value === "string" ? value || "(empty)" : value === null || value === undefined ? "none" : stringify(value));

// A description with its `code` as such.
const marked = (text) => text.split("`").map((part, index) => (index % 2 ? html`<code key=${index}>${part}</code>` : part));

async function load(signal) {
  const [report, version] = await Promise.all(["/admin/settings", "/version"].map((path) => get(path, {}, { signal })));
  return { ...report, version };
}

export function Settings() {
  const { query } = route.value;
  const text = (query.get("text") ?? "").toLowerCase();
  const sourceFilter = query.get("source");
  const state = usePoll(load, [], 60);
  const columns = [
    { name: "name", label: "Setting", render: (setting) => html`<code>${setting.name}</code>` },
    { name: "value", label: "Value", class: "value", render: (setting) => html`<${Value} setting=${setting} />` },
    { name: "source", label: "From", render: (setting) => html`<${Badge} tone=${isChanged(setting) ? "busy" : "quiet"}>${setting.source}<//>` },
    { name: "meaning", label: "Meaning", render: (setting) => marked(setting.description) },
  ];
  return html`<${Page} title="Settings"><${Loaded} state=${state}>${({ settings, unknown, version }) => {
    const matches = settings.filter((setting) => (!sourceFilter || isChanged(setting) === (sourceFilter === "changed"))
      && (!text || `${setting.name} ${setting.description}`.toLowerCase().includes(text)));
    matches.sort((a, b) => isChanged(b) - isChanged(a) || a.name.localeCompare(b.name));
    return html`
      ${unknown.length > 0 && html`<div class="failure" role="alert"><strong>${plural(unknown.length, "variable has", "variables have")} no effect</strong>
        ${unknown.map((problem) => html`<p key=${problem}>${problem}</p>`)}</div>`}
      <section class="card" aria-label="Version"><${Facts} items=${[["Version", version.version], ["Build", version.build], ["Python", version.python], ["Database", version.database], ["Schema", version.schema_version]]} /></section>
      <div class="card"><${Filters} label="Filter settings"><${TextFilter} name="text" label="Name or meaning" isFirst />
        <${ChoiceFilter} name="source" label="Show" options=${[["", "all"], ["changed", "changed"], ["default", "at their default"]]} /><//></div>
      <${Table} caption="Settings" columns=${columns} rows=${matches} rowKey=${(setting) => setting.name} empty="No setting matches this filter." />
      <p class="help">Of the server that has answered. Other servers of the same queue may have others.</p>`;
  }}<//><//>`;
}

function Value({ setting }) {
  if (setting.is_secret) return html`<span class="help">${isChanged(setting) ? "secret, set" : "secret, not set"}</span>`;
  const isOther = isChanged(setting) && stringify(setting.value) !== stringify(setting.default);
  return html`<span class="name value">${shownValue(setting.value)}</span>${isOther && html`<br /><span class="help">default: ${shownValue(setting.default)}</span>`}`;
}
