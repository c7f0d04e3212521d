// Dark or light: as the system says, unless the user chose one.
import { effect, signal } from "./lib.js";

const KEY = "zndraw-joblib theme";
export const themes = { "": "As the system", light: "Light", dark: "Dark" };
export const theme = signal(stored());
// Changes with the colours, also with those of the system; plots have to be drawn again then.
export const drawn = signal(0);

function stored() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // the browser forbids storage: the choice holds until the page is closed
  }
}

effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  try {
    theme.value ? localStorage.setItem(KEY, theme.value) : localStorage.removeItem(KEY);
  } catch {
    // As above.
  }
});

const redraw = () => (drawn.value = drawn.peek() + 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
