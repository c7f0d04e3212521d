// The result of a task: JSON, arrays, images and text are shown, everything can be downloaded.
import { download } from "../api.js";
import { bytes } from "../format.js";
import { html, useEffect, useSignal } from "../lib.js";
import { parse, stringify } from "../json.js";
import { Ago, Button, Copy, Empty, Failure, Loading, saveAs, Section } from "../ui.js";
import { ArrayView, fromNpy } from "./arrays.js";
import { Value } from "./values.js";

const MAX_PREVIEW = 8 * 1024 * 1024;
const IMAGES = /^image\/(png|jpeg|gif|webp|svg\+xml|avif|bmp)$/;

export function Result({ task }) {
  const { stored_result: stored, result } = task;
  const isEmpty = !stored && (result === null || result === undefined);
  if (isEmpty && task.status !== "completed") return null;
  const actions = html`${stored && html`<${Button} class="small" onClick=${() => save(task)}>Download<//>`}
    ${!stored && !isEmpty && html`<${Copy} text=${stringify(result, 2)} label="Copy JSON" />`}`;
  return html`<${Section} title="Result" actions=${actions}>${stored
    ? html`<${Stored} task=${task} />`
    : isEmpty ? html`<${Empty}>The job returned nothing.<//>`
      : html`<${Value} value=${result} label="Result" />`}<//>`;
}

async function save(task) {
  const response = await download(`/tasks/${task.id}/result`, { headers: { Accept: "*/*" } });
  saveAs(await response.blob(), task.stored_result.filename ?? `result-${task.id.slice(0, 8)}`);
}

function Stored({ task }) {
  const { content_type: type, size, filename, expires_at: expires, etag } = task.stored_result;
  const kind = type.split(";")[0].trim().toLowerCase();
  const preview = useSignal(null);
  const failed = useSignal(null);
  const canShow = size <= MAX_PREVIEW && (IMAGES.test(kind) || /json$|^text\//.test(kind) || kind === "application/x-npy");
  useEffect(() => {
    if (!canShow) return undefined;
    const controller = new AbortController();
    let address;
    download(`/tasks/${task.id}/result`, { headers: { Accept: "*/*" }, signal: controller.signal })
      .then(async (response) => {
        const value = await contentOf(response, kind);
        if (controller.signal.aborted) return;
        address = value.image;
        preview.value = value;
      })
      .catch((error) => controller.signal.aborted || (failed.value = error));
    return () => {
      controller.abort();
      if (address) URL.revokeObjectURL(address);
    };
  }, [task.id, etag]);
  return html`<p class="help">${filename ?? "Without a name"}, ${type}, ${bytes(size)}${expires && html`, kept until <${Ago} at=${expires} />`}</p>
    ${failed.value ? html`<${Failure} error=${failed.value} />` : !canShow ? html`<${Empty}>The page cannot show this result. Download it.<//>`
      : preview.value ? html`<${Content} ...${preview.value} />` : html`<${Loading} />`}`;
}

async function contentOf(response, kind) {
  if (IMAGES.test(kind)) return { image: URL.createObjectURL(new Blob([await response.arrayBuffer()], { type: kind })) };
  if (kind === "application/x-npy") return { array: fromNpy(await response.arrayBuffer()) };
  const text = await response.text();
  if (!/json$/.test(kind)) return { text };
  try {
    return { value: parse(`{"result":${text}\n}`).result };
  } catch {
    return { text };
  }
}

function Content({ image, array, text, value }) {
  if (image) return html`<img class="picture" src=${image} alt="The result" />`;
  if (array) return html`<${ArrayView} array=${array} />`;
  if (text !== undefined) return html`<pre tabindex="0" role="region" aria-label="Result">${text}</pre>`;
  return html`<${Value} value=${value} label="Result" />`;
}
