// Refreshes static/vendor from npm packages: `make vendor`. Each package is fetched by name and version; nothing is built.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const packages = {
  "preact@10.29.8": { "dist/preact.module.js": "preact.js", "hooks/dist/hooks.module.js": "preact-hooks.js" },
  "@preact/signals-core@1.14.5": { "dist/signals-core.module.js": "signals-core.js" },
  "@preact/signals@2.11.4": { "dist/signals.module.js": "signals.js" },
  "htm@3.1.1": { "dist/htm.module.js": "htm.js" },
  "uplot@1.6.32": { "dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css" },
};
// A browser resolves no names of packages, and a Content-Security-Policy without inline scripts allows no import map.
const imports = {
  "preact": "./preact.js",
  "preact/hooks": "./preact-hooks.js",
  "@preact/signals-core": "./signals-core.js",
};

const [python, ...npm] = process.argv.slice(2);
const vendor = fileURLToPath(new URL("static/vendor/", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "vendor-"));
const notes = ["# Libraries of the page", "", "Files of npm packages, unchanged but for the names in their imports and the export of uPlot. `make vendor` writes this folder.", ""];
for (const [name, files] of Object.entries(packages)) {
  const packed = execFileSync(resolve(python), [...npm, "pack", "--silent", name], { cwd: folder, encoding: "utf8" }).trim();
  execFileSync("tar", ["-xzf", packed], { cwd: folder });
  for (const [from, to] of Object.entries(files)) {
    const text = readFileSync(join(folder, "package", from), "utf8")
      .replace(/from\s*"([^"]+)"/g, (all, wanted) => (imports[wanted] ? `from"${imports[wanted]}"` : all))
      .replace(/\n?\/\/# sourceMappingURL=.*\s*$/, "\n");
    // The small file of uPlot is a script that defines a variable.
    writeFileSync(join(vendor, to), from.includes(".iife.") ? `${text.trimEnd()}\nexport default uPlot;\n` : text);
  }
  const licence = readFileSync(join(folder, "package", "LICENSE"), "utf8").trim();
  notes.push(`## ${name}`, "", Object.values(files).map((file) => `\`${file}\``).join(", "), "", "```text", licence, "```", "");
  rmSync(join(folder, "package"), { recursive: true });
}
writeFileSync(join(vendor, "README.md"), notes.join("\n"));
rmSync(folder, { recursive: true });
